"""Writes what is reported as TensorBoard event files, where `tensorboard` is installed.

Tags: `Determined/<name>` for training metrics; validation metrics carry the prefix `val_` unless they start with `val`;
other groups are `<group>/<name>`. Files go to `tensorboard/trial-<id>` in the experiment's directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_core.hookspecs import hookimpl
from det_core.tensorboard import EventFile


class TensorBoard:
    """The observer; one file for each trial, opened at its first report."""

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}

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
