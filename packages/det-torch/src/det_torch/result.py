"""The result of `Trainer.fit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from det_core import Stop


class Report(NamedTuple):
    """The metrics of a group (`training`, `validation`, or one of your own) after `batches`
    batches.
    """

    group: str
    batches: int
    metrics: dict[str, Any]


class SavedCheckpoint(NamedTuple):
    """A checkpoint: its uuid, the position that it was saved at, and its directory or URL."""

    uuid: str
    batches: int
    path: str


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of a training from the trial's first batch on, also if it was resumed.

    - `stop`: `Stop.COMPLETED`, `Stop.PREEMPTED` (Ctrl-C, a signal, the driver of `det run`) or
      `Stop.USER_STOPPED` (`set_stop_requested`).
    - `best`: the checkpoint of the best validation, or None.
    - `best_value`: the metric's value at that validation, or None.

    Only the chief (rank 0) knows reports and checkpoints.
    """

    stop: Stop
    batches: int
    reports: list[Report] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    best: SavedCheckpoint | None = None
    best_metric: str | None = None
    best_value: float | None = None

    @property
    def latest(self) -> SavedCheckpoint | None:
        """The newest checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def training(self) -> list[Report]:
        """The reports of training, in order."""
        return [report for report in self.reports if report.group == "training"]

    @property
    def validation(self) -> list[Report]:
        """The reports of validations, in order."""
        return [report for report in self.reports if report.group == "validation"]
