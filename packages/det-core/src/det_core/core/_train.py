"""Reporting: metrics, progress, status, an early end, TensorBoard's files."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MetricError
from ..host import Outcome, TrialHost
from ..metrics import plain
from ..storage import Storage
from ..tensorboard import upload


@dataclass
class Steps:
    """How many batches are trained, as far as the script has reported."""

    completed: int = 0


def must_be_chief(rank: int, what: str) -> None:
    """Raise RuntimeError on any rank but 0."""
    if rank != 0:
        raise RuntimeError(f"rank {rank} tried to {what}; only rank 0 may")


class EarlyExitReason(enum.Enum):
    """Why a script ends its trial early."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TensorboardMode(enum.Enum):
    """Who copies TensorBoard's files to checkpoint storage: det when a run has ended, or, with MANUAL, the script alone.

    det writes the reports as events either way.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TrainContext:
    """What the chief tells of its training. Every method but the getters is for rank 0."""

    def __init__(
        self, host: TrialHost, storage: Storage, steps: Steps, tensorboard_dir: Path | None, rank: int
    ) -> None:
        self._host, self._storage, self._steps = host, storage, steps
        self._dir, self._rank = tensorboard_dir, rank

    def report_training_metrics(
        self, steps_completed: int, metrics: Mapping[str, Any], batch_metrics: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Report metrics of training after `steps_completed` batches. `batch_metrics` is accepted and not stored."""
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report a validation after `steps_completed` batches; the searcher hears of it before this returns."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group. Raises MetricError for a validation metric that is None."""
        must_be_chief(self._rank, "report metrics")
        numbers = plain(metrics)
        self._steps.completed = max(self._steps.completed, steps_completed)
        if group != "validation":
            self._host.report(group, steps_completed, numbers)
            return
        empty = [name for name, value in numbers.items() if value is None]
        if empty:
            raise MetricError(f"validation metric {empty[0]!r} is None; report a number, or leave it out")
        numbers.setdefault("batches", steps_completed)
        self._host.validated(steps_completed, numbers, None)

    def report_progress(self, progress: float) -> None:
        """Report how much of the training is done, 0 to 1; ValueError beyond."""
        must_be_chief(self._rank, "report progress")
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress is {progress}; report a number from 0 to 1")
        self._host.progress(progress)

    def set_status(self, status: str) -> None:
        """Say in a word what the script is doing."""
        must_be_chief(self._rank, "set the status")
        self._host.status(status)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Say that the script is about to end its trial early; end the process with status 0 after this."""
        must_be_chief(self._rank, "report an early exit")
        invalid = EarlyExitReason(reason) is EarlyExitReason.INVALID_HP
        self._host.finished(Outcome.INVALID_HP if invalid else Outcome.USER_STOPPED)

    def get_experiment_best_validation(self) -> float | None:
        """Return the best value of the searcher's metric in the experiment so far, None before the first."""
        return self._host.best_validation()

    def get_tensorboard_path(self) -> Path | None:
        """Return the directory for TensorBoard's files, None outside of `det run`."""
        return self._dir

    def upload_tensorboard_files(
        self, selector: Callable[[Path], bool] = lambda _: True, mangler: Callable[[Path, int], Path] | None = None
    ) -> str | None:
        """Copy the files of `get_tensorboard_path()` to checkpoint storage, in place of those of an earlier call.

        `selector` says by its relative path whether a file is wanted; `mangler` gets that path and the rank, and returns the one to
        store it under. Returns the name that storage has for them, as it has uuids for checkpoints; None where there is nothing to
        copy, as outside of `det run`. The files stay where they are, too, for `det tensorboard`. Unless the mode is MANUAL, det
        copies all of them when the run has ended, where `checkpoint_storage` names a place.
        """
        must_be_chief(self._rank, "upload TensorBoard's files")

        def target(path: Path) -> Path | None:
            return None if not selector(path) else path if mangler is None else mangler(path, 0)

        return None if self._dir is None else upload(self._storage, self._dir, target)
