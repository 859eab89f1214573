"""Writes what is reported as TensorBoard event files, where `tensorboard` is installed.

Where `checkpoint_storage` names a place, a trial's files are copied there when a run of it has ended, however it did: as
`tensorboard-<uuid>`, by a thread, as the driver must not wait for a slow storage while it trains.

Tags: `Determined/<name>` for training metrics; validation metrics carry the prefix `val_` unless they start with `val`;
other groups are `<group>/<name>`. Files go to `tensorboard/trial-<id>` in the experiment's directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_core.hookspecs import hookimpl
from det_core.tensorboard import MANUAL, EventFile, upload

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class TensorBoard:
    """The observer; one file for each trial, opened at its first report. Where nobody can write one, it only copies."""

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}
        self._copies: ThreadPoolExecutor | None = None

    if find_spec("tensorboard") is not None:

        @hookimpl
        def det_experiment_started(self, experiment: Any) -> None:
            import_module("tensorboard.summary.writer.record_writer")  # the first report is not to wait for it

        @hookimpl
        def det_metrics_reported(
            self, experiment: Any, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
        ) -> None:
            if trial.id not in self._files:
                self._files[trial.id] = EventFile(Path(experiment.tensorboard_dir) / f"trial-{trial.id}")
            self._files[trial.id].add(group, batches, metrics)

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        if file := self._files.pop(trial.id, None):
            file.close()
        if getattr(experiment.config.checkpoint_storage, "type", None) is not None:
            from concurrent.futures import ThreadPoolExecutor

            self._copies = self._copies or ThreadPoolExecutor(1, "det-tensorboard")
            self._copies.submit(_copy, experiment, trial.id)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        if self._copies is not None:
            self._copies.shutdown()
            self._copies = None


def _copy(experiment: Any, trial: int) -> None:
    directory = Path(experiment.tensorboard_dir) / f"trial-{trial}"
    if (directory / MANUAL).exists() or not any(path.is_file() for path in directory.rglob("*")):
        return
    try:
        upload(experiment.storage(), directory)
    except Exception as error:  # the run has ended, and its checkpoints are there
        from det_core.launch import say

        say(
            f"the TensorBoard files of trial {trial} were not copied to checkpoint storage: {error}; they are in {directory}"
        )
