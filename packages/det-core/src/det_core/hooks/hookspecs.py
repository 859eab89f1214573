"""The hooks: register, build, observe. All are called at boundaries, none for each batch.

Every argument is passed by name; an implementation takes those that it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

from ..ranks.backend import BackendRecord
from . import records

PROJECT = "det"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register:
    """Each yields records; core looks them up by name."""

    @hookspec
    def det_frameworks(self) -> Iterable[records.Framework]:
        """Frameworks whose trials det can train."""

    @hookspec
    def det_backends(self) -> Iterable[BackendRecord]:
        """Ways for ranks to communicate."""

    @hookspec
    def det_searchers(self) -> Iterable[records.SearcherRecord]:
        """Searchers, chosen by `searcher.name`."""

    @hookspec
    def det_storages(self) -> Iterable[records.StorageRecord]:
        """Checkpoint storages, chosen by `checkpoint_storage.type`."""

    @hookspec
    def det_launchers(self) -> Iterable[records.LauncherRecord]:
        """What the ranks of a framework get, for `det launch NAME`."""

    @hookspec
    def det_engines(self) -> Iterable[records.EngineRecord]:
        """Places where runs are executed."""

    @hookspec
    def det_environments(self) -> Iterable[records.EnvironmentRecord]:
        """Ways to make the environments that configurations ask for."""

    @hookspec
    def det_commands(self) -> Iterable[records.CommandRecord]:
        """Subcommands of `det`."""

    @hookspec
    def det_plugin_configs(self) -> Iterable[records.PluginConfig]:
        """Settings accepted under `plugins.NAME`."""


class BuildHooks:
    """The trial's framework plugin answers.

    Any other plugin may wrap the hook (`@hookimpl(wrapper=True)`).
    """

    @hookspec(firstresult=True)
    def det_build_model(self, context: Any, build: Callable[[], Any]) -> Any:
        """Return the model made by `build()`, placed and wrapped for the run."""

    @hookspec(firstresult=True)
    def det_build_optimizer(self, context: Any, build: Callable[[], Any]) -> Any:
        """Return the optimizer made by `build()`, wrapped for the run."""

    @hookspec(firstresult=True)
    def det_build_lr_scheduler(self, context: Any, build: Callable[[], Any]) -> Any:
        """Return the learning-rate scheduler made by `build()`."""

    @hookspec(firstresult=True)
    def det_build_data_loader(self, context: Any, build: Callable[[], Any], split: str) -> Any:
        """Return the data loader made by `build()` for the split `training` or `validation`."""


class Observe:
    """Called after the fact, in the driver.

    An observer that raises is named, and the experiment goes on.
    """

    @hookspec
    def det_experiment_started(self, experiment: Any) -> None:
        """An experiment starts or is resumed."""

    @hookspec
    def det_trials_waiting(self, experiment: Any, why: str) -> None:
        """Trials are to run, and none does: `why` says for what they wait, and who holds it."""

    @hookspec
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        """A run of a trial starts."""

    @hookspec
    def det_trial_status(self, experiment: Any, trial: Any, status: str) -> None:
        """A run says what it does, such as `training`.

        The first time is when its code is imported and its state restored.
        """

    @hookspec
    def det_trial_noticed(self, experiment: Any, trial: Any, notice: str) -> None:
        """Something should be known of a trial that goes on: `notice` says what, in a sentence."""

    @hookspec
    def det_metrics_reported(
        self,
        experiment: Any,
        trial: Any,
        trial_id: int,
        group: str,
        batches: int,
        metrics: Mapping[str, Any],
    ) -> None:
        """Metrics are stored.

        `trial_id` is the trial's id. Where no observer takes `trial`, its row is not read.
        """

    @hookspec
    def det_checkpoint_saved(self, experiment: Any, trial: Any, checkpoint: Any) -> None:
        """A checkpoint is published and recorded."""

    @hookspec
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        """A run ended."""

    @hookspec
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        """An experiment completed, failed, was canceled or paused."""


GROUPS: tuple[type, ...] = (Register, BuildHooks, Observe)
