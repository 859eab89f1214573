"""Reports metrics, progress, status and an early end, and copies TensorBoard's files."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DetError, MetricError, TrialError
from ..storage import Storage
from ..train import arguments as check
from ..train.host import Outcome, TrialHost
from ..train.metrics import plain
from ..train.tensorboard import upload

_NO_METADATA = (
    "give it to checkpoint.store_path(metadata), or report it with train.report_metrics(group, ...)"
)


# The key in the metadata for the number of a call of fit(), if it is not the first.
_FIT = "fit"
_ONE_FIT = (
    "train all in one fit(), for instance with a callback that unfreezes weights, or in one"
    " experiment for each"
)


@dataclass
class Steps:
    """The number of batches trained, as far as the script has reported.

    - `operations`: the script trains to the searcher's lengths, and reports its metric for each.
    - `furthest`: the highest position of each group that this process has reported.
    - `saved`: the highest position of a checkpoint that it has stored.
    - `must_rise`: no group may be reported at a position below its highest.
    - `noticed`: the user has a notice about positions that go back.
    """

    completed: int = 0
    operations: bool = False
    furthest: dict[str, int] = field(default_factory=dict)
    saved: int = 0
    must_rise: bool = False
    noticed: bool = False


class Fits:
    """The calls of a framework's fit() in one run, for callbacks that report and save themselves.

    Positions of a later call count on from those before it. Its checkpoints are marked: a run that
    begins again with the first call cannot continue from them.
    """

    def __init__(self, host: TrialHost, steps: Steps, *, in_run: bool) -> None:
        self._host, self._steps, self._in_run = host, steps, in_run
        self._begun = 0

    @property
    def is_later(self) -> bool:
        """Whether a call of fit() has begun before. Never outside of a run."""
        return self._in_run and self._begun > 0

    def begin(self, *, chief: bool = True) -> int:
        """Note that a call begins, and return the position from which it counts."""
        offset = max(self._steps.completed, self._steps.saved) if self.is_later else 0
        self._begun += 1
        if self._in_run and self._begun == 2 and chief:
            self._host.notice(
                "a second fit() begins in this run. If it is interrupted, the run cannot go on:"
                f" {_ONE_FIT}"
            )
        return offset

    def metadata(self) -> dict[str, Any]:
        """Return what the metadata of a checkpoint say of the current call."""
        return {_FIT: self._begun} if self._in_run and self._begun > 1 else {}

    def check(self, metadata: Mapping[str, Any]) -> None:
        """Raise TrialError if a checkpoint is of a later call than the first."""
        number = metadata.get(_FIT, 1)
        if number != 1:
            raise TrialError(
                f"the checkpoint is of fit() number {number} of this script, and the script begins"
                f" with the first; {_ONE_FIT}"
            )


def notice_once(host: TrialHost, steps: Steps, text: str) -> None:
    """Report that positions go back, once in a run."""
    if not steps.noticed:
        steps.noticed = True
        host.notice(text)


def must_be_chief(rank: int, what: str) -> None:
    """Raise RuntimeError on any rank but 0."""
    if rank != 0:
        raise RuntimeError(f"rank {rank} tried to {what}; only rank 0 may")


class EarlyExitReason(enum.Enum):
    """Why a script ends its trial early."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TensorboardMode(enum.Enum):
    """Who copies TensorBoard's files to checkpoint storage.

    AUTO: det, when a run has ended. MANUAL: the script alone. In both modes det writes the reports
    as events.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class TrainContext:
    """Reports metrics and progress to det. Only rank 0 may report. Any rank may use the getters.

    A report below the furthest position of its group in this run raises ArgumentError.
    """

    def __init__(
        self,
        host: TrialHost,
        storage: Storage,
        steps: Steps,
        tensorboard_dir: Path | None,
        rank: int,
        metric: str | None = None,
    ) -> None:
        self._host, self._storage, self._steps = host, storage, steps
        self._dir, self._rank = tensorboard_dir, rank
        # The searcher's metric, until the first validation is reported.
        self._metric = metric

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Report metrics of training after `steps_completed` batches.

        - `metrics`: values by name, of numbers, text, lists of them, or None. Others raise
          MetricError.
        - `batch_metrics`: accepted and not stored.
        """
        self._report("report_training_metrics", "training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report a validation after `steps_completed` batches. The searcher has it on return.

        `metrics` are values by name, with `searcher.metric` among them. Raises MetricError for
        None.
        """
        self._report("report_validation_metrics", "validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group, such as `training`, `validation` or a name of your own.

        Raises MetricError for a validation metric that is None.
        """
        self._report(
            "report_metrics", check.text("report_metrics", "group", group), steps_completed, metrics
        )

    def _report(
        self, call: str, group: str, steps_completed: int, metrics: Mapping[str, Any]
    ) -> None:
        must_be_chief(self._rank, "report metrics")
        steps_completed = check.whole(call, "steps_completed", steps_completed)
        numbers = plain(check.mapping(call, "metrics", metrics), strict=True)
        self._check_order(call, group, steps_completed)
        self._steps.completed = max(self._steps.completed, steps_completed)
        if group != "validation":
            self._host.report(group, steps_completed, numbers)
            return
        empty = [name for name, value in numbers.items() if value is None]
        if empty:
            raise MetricError(
                f"validation metric {empty[0]!r} is None; report a number, or leave it out"
            )
        self._notice_missing(numbers)
        numbers.setdefault("batches", steps_completed)
        self._host.validated(steps_completed, numbers, None)

    def _check_order(self, call: str, group: str, position: int) -> None:
        """Refuse a position below the furthest of its group, or say so where nothing depends on it.

        The store keeps one report per group and position, and takes a checkpoint for the model that
        was validated at its position. A second phase that counts from 1 would replace the reports
        of the first, and give its own metrics to the checkpoints of the first.
        """
        furthest = self._steps.furthest.get(group, 0)
        if position >= furthest:
            self._steps.furthest[group] = position
            return
        if self._steps.must_rise:
            way_out = (
                f"{furthest} or more, as this run has reported {group!r} at {furthest} before; let"
                " a further phase of the script count on from there"
            )
            raise check.refuse(call, "steps_completed", position, way_out)
        notice_once(
            self._host,
            self._steps,
            f"{group!r} is reported at position {position} after {furthest}; in a run of det that"
            " is an error, so let a further phase of the script count on",
        )

    def _notice_missing(self, numbers: Mapping[str, Any]) -> None:
        """Say that the searcher's metric is not in the first validation.

        It is no error: the script may report the metric in another call.
        """
        metric, self._metric = self._metric, None
        # A command of `det cmd` has a searcher without a metric.
        if not metric or metric in numbers or self._steps.operations:
            return
        known = ", ".join(map(repr, numbers)) or "no metric"
        self._host.notice(
            f"searcher.metric is {metric!r}, and the first validation that the script reported has"
            f" {known}; report it, or name one of these. Without it no trial is the best, and a"
            " search cannot compare"
        )

    def report_progress(self, progress: float) -> None:
        """Report how much of the training is done, from 0 to 1. Raises ValueError otherwise."""
        must_be_chief(self._rank, "report progress")
        self._host.progress(
            check.real("report_progress", "progress", progress, "a number from 0 to 1", 0.0, 1.0)
        )

    def set_status(self, status: str) -> None:
        """Report in a word what the script is doing."""
        must_be_chief(self._rank, "set the status")
        self._host.status(check.text("set_status", "status", status))

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Report that the script is about to end its trial early. Then end it with status 0."""
        must_be_chief(self._rank, "report an early exit")
        reason = check.member("report_early_exit", "reason", reason, EarlyExitReason)
        invalid = reason is EarlyExitReason.INVALID_HP
        self._host.finished(Outcome.INVALID_HP if invalid else Outcome.USER_STOPPED)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Raise DetError, as a run has no metadata.

        Determined 0.35 and later kept some in its master.
        """
        raise DetError(f"train.set_metadata is not in det; {_NO_METADATA}")

    def get_metadata(self) -> dict[str, Any] | None:
        """Raise DetError, as `set_metadata` does."""
        raise DetError(f"train.get_metadata is not in det; {_NO_METADATA}")

    def get_experiment_best_validation(self) -> float | None:
        """Return the best value of the searcher's metric in the experiment so far, or None."""
        return self._host.best_validation()

    def get_tensorboard_path(self) -> Path | None:
        """Return the directory for TensorBoard's files, or None outside of `det run`."""
        return self._dir

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] | None = None,
    ) -> str | None:
        """Copy the files of `get_tensorboard_path()` to checkpoint storage.

        They replace the files of an earlier call. `selector` returns whether a file is wanted,
        given its relative path. `mangler` gets that path and the rank, and returns the path to
        store it under. Returns the name of the files in storage, or None if there is nothing to
        copy, as outside of `det run`. The files also stay in place for `det tensorboard`.

        Unless the mode is MANUAL, det copies all of them when the run has ended, if
        `checkpoint_storage` names a place.
        """
        must_be_chief(self._rank, "upload TensorBoard's files")
        check.function("upload_tensorboard_files", "selector", selector)
        check.function("upload_tensorboard_files", "mangler", mangler)

        def target(path: Path) -> Path | None:
            return None if not selector(path) else path if mangler is None else mangler(path, 0)

        return None if self._dir is None else upload(self._storage, self._dir, target)
