"""Writes what is reported as TensorBoard event files, where `tensorboard` is installed.

Tags: `Determined/<name>` for training metrics; validation metrics carry the prefix `val_` unless they start with `val`;
other groups are `<group>/<name>`. Files go to `tensorboard/trial-<id>` in the experiment's directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..hookspecs import hookimpl


class TensorBoard:
    """The observer; one file for each trial, opened at its first report."""

    def __init__(self) -> None:
        self._writers: dict[int, Any] = {}
        self._installed: bool | None = None

    @hookimpl
    def det_metrics_reported(
        self, experiment: Any, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        if self._installed is None:
            self._installed = find_spec("tensorboard") is not None
        if not self._installed:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=tag(group, name), simple_value=float(value))
            for name, value in metrics.items()
            if isinstance(value, (int, float))
        ]
        self._writer(Path(experiment.tensorboard_dir) / f"trial-{trial.id}", trial.id).add_event(
            Event(step=batches, summary=Summary(value=values))
        )

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        writer = self._writers.pop(trial.id, None)
        if writer is not None:
            writer.close()

    def _writer(self, directory: Path, trial_id: int) -> Any:
        if trial_id not in self._writers:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writers[trial_id] = EventFileWriter(str(directory))
        return self._writers[trial_id]


def tag(group: str, name: str) -> str:
    """Return the tag of a metric, as Determined's users know it."""
    if group == "training":
        return f"Determined/{name}"
    if group == "validation":
        return f"Determined/{name if name.startswith('val') else f'val_{name}'}"
    return f"{group}/{name}"
