"""Hears of experiments that ask for MLflow, and passes on what it hears; imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from det_core import PluginConfig, hookimpl

if TYPE_CHECKING:
    from .recorder import Recorder

NAME = "mlflow"


class Mlflow:
    """The plugin: one recorder for each experiment with `plugins.mlflow`, from start to end."""

    def __init__(self) -> None:
        self._recorders: dict[int, Recorder] = {}

    @hookimpl
    def det_plugin_configs(self) -> Iterator[PluginConfig]:
        yield PluginConfig(name=NAME, config=_settings)

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        settings = experiment.config.plugins.get(NAME)
        if settings is not None:
            from .recorder import Recorder

            self._recorders[experiment.id] = Recorder(experiment, settings)

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any) -> None:
        if recorder := self._recorders.get(experiment.id):
            recorder.starts(trial)

    @hookimpl
    def det_metrics_reported(
        self, experiment: Any, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        if recorder := self._recorders.get(experiment.id):
            recorder.reports(trial, group, batches, metrics)

    @hookimpl
    def det_checkpoint_saved(self, experiment: Any, trial: Any, checkpoint: Any) -> None:
        if recorder := self._recorders.get(experiment.id):
            recorder.saves(trial, checkpoint)

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        if recorder := self._recorders.get(experiment.id):
            recorder.ends(trial, run, outcome)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        if recorder := self._recorders.pop(experiment.id, None):
            recorder.close(state)


def _settings() -> type:
    from .settings import Settings

    return Settings


plugin = Mlflow()
