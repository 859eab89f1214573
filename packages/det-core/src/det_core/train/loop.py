"""The training loop of one run: how many batches to train, and what happens between them.

All frameworks share this loop, whichever code has the `for`: a plugin (torch), the framework (Keras
and Lightning, where a callback calls `step`), or a chunk of a graph (estimator,
`steps_per_execution`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import TrialError
from .adapter import Adapter, Loop, Metrics, Stop
from .host import Flag, HostLost, Target, TrialHost, broadcast_target
from .metrics import mapping, mean, plain, searcher_metric
from .schedule import NEVER, Schedule, to_batches

if TYPE_CHECKING:
    from ..config import Length
    from ..ranks.backend import Communicator
    from .async_writer import AsyncCheckpointWriter

# How late a preemption may be noticed where several ranks must agree, in seconds.
_SYNC_SECONDS = 1.0
# The most batches between two such agreements.
_SPACING = 10_000
# The most batches whose metrics stay on the device, however rarely they are reported.
_ROWS = 4096
_SILENT = Flag()


class LoopError(RuntimeError):
    """An adapter broke the rules of the loop."""


_NO = Stop.NO

RUNNING: ContextVar[RunLoop | None] = ContextVar("RUNNING", default=None)
"""The loop that trains in this thread. Contexts read the position from it."""


@dataclass(kw_only=True)
class Progress:
    """The state of the loop that must survive a restart, in addition to the framework's state.

    - `pending`: the numbers of the batches trained since the last report, so that a report does not
      depend on where a run was interrupted. `counts` says how many batches each stands for.
    - `validation`: the metrics of the validation at `validated_at`.
    - `untold`: reports as `[group, batches, metrics]` that the driver may not have stored. They are
      sent again.
    - `asked`: whether the trial requested its end.
    - `finished`: whether the framework has done its work at the end of training.
    """

    batches: int = 0
    validated_at: int = -1
    pending: list[dict[str, float]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    validation: dict[str, Any] = field(default_factory=dict)
    untold: list[list[Any]] = field(default_factory=list)
    asked: bool = False
    finished: bool = False


class RunLoop(Loop):
    """The training loop of a run: gets the target from the host, and does what is due."""

    def __init__(
        self,
        adapter: Adapter[Any],
        schedule: Schedule,
        host: TrialHost,
        distributed: Communicator,
        save: Callable[[Progress], bool],
        progress: Progress | None = None,
        length: Length | None = None,
        writer: AsyncCheckpointWriter | None = None,
    ) -> None:
        """Make the loop of a run.

        - `length`: how long the trial trains if nothing ends it earlier. There the framework
          finishes.
        - `save`: writes and publishes a checkpoint, on all ranks together. Returns whether the
          driver recorded it.
        - `writer`: the async checkpoint writer, if there is one. The loop waits for it when a run
          ends or is complete.
        """
        self._adapter = adapter
        self._ends = length
        self._schedule = schedule
        self._host = host
        self._distributed = distributed
        self._save_to, self._writer = save, writer
        # Reports that are in the checkpoint being written.
        self._saved_reports: list[list[Any]] = []
        self._progress = _copy(progress) if progress else Progress()
        self._alone = distributed.size == 1
        self._flag = host.preempted if self._alone else _SILENT
        self._rows: list[Metrics] = []
        self._counts: list[int] = []
        self._batches = self._progress.batches
        self._saved_at = self._batches if progress else -1
        self._first = self._batches
        self._stop = Stop.NO
        self._noticed = False
        self._asked, self._break, self._lost = self._progress.asked, False, False
        self._synced, self._sync_time, self._sync_at = (
            self._batches,
            time.monotonic(),
            self._batches,
        )
        self._next = self._batches
        self._set_target(Target(n=None))

    @property
    def batches_trained(self) -> int:
        """Batches trained so far, by this run and by earlier ones."""
        return self._batches

    # What an adapter sees

    @property
    def done(self) -> int:
        return self._first

    @property
    def remaining(self) -> int:
        return 0 if self._stop else self._next - self._batches

    @property
    def stop(self) -> Stop:
        return self._stop

    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        done = self._batches + batches
        between = done < self._next and batches > 0 and not (self._flag.raised or self._break)
        if not between:
            self._check(batches)
        self._batches = done
        self._rows.append(metrics)
        self._counts.append(batches)
        if between:
            return _NO
        self._handle_boundary()
        self._conclude()
        return self._stop

    def request_stop(self) -> None:
        self._asked = True
        self._break = self._alone

    def conclude(self) -> Stop:
        if not self._stop:
            self._conclude()
        return self._stop

    @property
    def length(self) -> int | None:
        return to_batches(self._ends.n, self._ends.unit, self._adapter) if self._ends else None

    @property
    def owes_validation(self) -> bool:
        due = self._batches >= self._length or self._schedule.validate.due(self._batches)
        return due and self._progress.validated_at != self._batches

    # What core sees

    @property
    def progress(self) -> Progress:
        """A snapshot of the state to save. Its pending numbers are plain."""
        self._take_numbers()
        return replace(_copy(self._progress), batches=self._batches, asked=self._asked)

    def begin(self) -> Stop:
        """Get the target, do what an interrupted run left due, and stop if nothing is left."""
        self._set_target(self._request_target(self._host.target))
        unmeasured = self._asked and self._progress.validated_at != self._batches
        if self._progress.finished and self._batches < self._length and not unmeasured:
            # The trial had ended, and now continues to a new target.
            self._progress.finished = self._asked = False
        if not self._lost:
            self._send_reports_again()
        if self._batches > 0:
            self._handle_boundary()
        elif self._schedule.validate_first and self._length > 0 and not self._agree():
            self._validate()
        self._conclude()
        return self._stop

    def save_after_error(self) -> None:
        """Save the position when training ends by an error.

        One of several ranks cannot save alone.
        """
        if self._alone and self._batches:
            self._save(wait=True)

    # Boundaries

    def _handle_boundary(self) -> None:
        """Report, validate and save where this position is due. The target is handled elsewhere.

        A run that is to stop leaves the validation to the next run, which finds it due when it
        begins.
        """
        done, schedule = self._batches, self._schedule
        if done >= self._length or schedule.due(done):
            self._report()
        elif len(self._rows) >= _ROWS:
            self._take_numbers()
        if done < self._length:
            if schedule.validate.due(done) and not self._agree():
                self._validate()
            if schedule.checkpoint.due(done):
                self._save()

    def _conclude(self) -> None:
        """End the run where it must end, and set the position of the next boundary."""
        stopping = self._agree()
        if stopping:
            self._finish(stopping)
        elif self._batches >= self._length:
            self._complete()
        self._plan()

    def _check(self, batches: int) -> None:
        if self._stop:
            raise LoopError(
                f"step() called at batch {self._batches} after the loop had {self._stop.value};"
                " stop training when step() is true"
            )
        if batches < 1:
            raise LoopError(f"step() was given {batches} batches; give 1 or more")
        if batches > self.remaining:
            raise LoopError(
                f"trained {batches} batches at once but only {self.remaining} were left before a"
                " boundary; train at most loop.remaining"
            )

    def _plan(self) -> None:
        if self._stop:
            self._next = 0
            return
        ahead = min(self._schedule.after(self._batches), self._length, self._batches + _ROWS)
        self._next = ahead if self._alone else min(ahead, self._sync_at)

    def _agree(self) -> Stop:
        """Return the same decision on every rank: continue, or stop for one reason."""
        preempted = self._host.preempted.raised or self._lost
        saved = self._writer is not None and self._writer.ended
        if not self._alone:
            now = time.monotonic()
            a_batch = (now - self._sync_time) / max(1, self._batches - self._synced)
            states = self._distributed.allgather((preempted, self._asked, a_batch, saved))
            # Only the chief writes.
            saved = states[0][3]
            preempted, self._asked = any(a[0] for a in states), any(a[1] for a in states)
            spacing = (
                1 if self._batches == self._synced else int(_SYNC_SECONDS / max(states[0][2], 1e-6))
            )
            self._synced, self._sync_time = self._batches, now
            self._sync_at = self._batches + max(1, min(_SPACING, spacing))
        if saved:
            self._finish_save()
        if preempted:
            return Stop.PREEMPTED
        return Stop.USER_STOPPED if self._asked else Stop.NO

    def _complete(self) -> None:
        """Validate at the target, get the next target from the searcher, and stop if there is none.

        A target in records may come to as many batches as the last one. Then it is complete at
        once.
        """
        complete: int | None = None
        while (
            self._batches >= self._length
            and not self._lost
            and self._target.n not in (None, complete)
        ):
            complete = self._target.n
            if self.length is not None and self._batches >= self.length:
                self._finish_training()
            self._validate()
        if self._lost:
            self._finish(Stop.PREEMPTED)
        elif self._batches >= self._length:
            self._finish(Stop.COMPLETED)

    def _finish(self, why: Stop) -> None:
        if why is Stop.USER_STOPPED:
            self._report()
            self._finish_training()
            self._validate()
        self._save(wait=True)
        self._stop = why

    def _finish_training(self) -> None:
        """Let the framework do its work at the end of training, once.

        This position is then validated and saved again, in the state that the framework leaves.
        """
        if not self._progress.finished:
            before = self._adapter.fingerprint() if self._alone else ""
            try:
                self._adapter.finish()
            except Exception:
                # Frameworks may validate here, too. If no weight has changed, the state can be
                # saved as training left it.
                with suppress(Exception):
                    if self._adapter.fingerprint() == before:
                        self.save_after_error()
                raise
            self._progress.finished = True
            self._progress.validated_at = self._saved_at = -1

    def _report(self) -> None:
        self._take_numbers()
        rows, counts = self._progress.pending, self._progress.counts
        if not rows:
            return
        self._progress.pending, self._progress.counts = [], []
        metrics = plain(self._with_time(self._adapter.reported(mean(rows, counts), rows)))
        self._send_report("training", self._batches, metrics)
        self._notice_not_finite(metrics, rows, counts)

    def _notice_not_finite(
        self,
        metrics: Mapping[str, Any],
        rows: Sequence[Mapping[str, float]],
        counts: Sequence[int],
    ) -> None:
        """Notice, once in a run, that a training report has a metric that is NaN or infinite."""
        name = next((name for name, value in metrics.items() if _is_not_finite(value)), None)
        if name is None or self._noticed:
            return
        self._noticed = True
        batch = self._batches - sum(counts)
        for row, count in zip(rows, counts, strict=True):
            batch += count
            if _is_not_finite(row.get(name)):
                break
        if self._distributed.rank == 0 and not self._lost:
            try:
                self._host.notice(
                    f"the training metric {name!r} is {metrics[name]} at batch {batch}; if it stays"
                    " so, lower the learning rate, clip the gradients, or look at the data"
                )
            except HostLost:
                self._lost = True

    def _validate(self) -> None:
        """Validate, report, and save where the policy says so, once at a position.

        - At the target the checkpoint comes before the report, as the searcher may answer with a
          trial that starts from it.
        - Where the trial ends for certain, the checkpoint also comes before the validation, which
          may fail.
        - A target that may be raised later is saved after the validation, with what callbacks
          learned from it.
        - A position that becomes the target only after its validation is reported again, as
          complete, without a second validation.
        """
        complete = self._batches >= self._length
        if complete:
            self._host.asks_next = True
            # A trial that requested its end is saved after its validation. If it later continues,
            # the saved validation shows that it had ended.
            if self._progress.finished and not self._asked:
                self._save(wait=True)
        if self._progress.validated_at != self._batches:
            self._measure()
        elif not complete:
            return
        if complete:
            self._save(wait=True)
        length = self._target.n if complete else None
        metrics = dict(self._progress.validation)
        self._set_target(
            self._request_target(lambda: self._host.validated(self._batches, metrics, length))
        )
        self._host.asks_next = False
        if self._lost:
            return
        self._progress.untold.clear()
        policy = self._schedule.policy
        if policy == "all" or (policy == "best" and self._target.best):
            self._save()

    def _measure(self) -> None:
        """Validate.

        If that fails, save what was trained so far, and the next run validates again.
        """
        self._make_equal()
        try:
            raw = self._with_time(mapping(self._adapter.validate()))
            metrics = plain(raw)
            name = self._schedule.metric
            if name is not None:
                metrics[name] = searcher_metric(name, raw)
        except Exception:
            # The error of the validation is raised, even if saving fails, too.
            with suppress(Exception):
                self.save_after_error()
            raise
        self._progress.validated_at, self._progress.validation = self._batches, metrics
        self._progress.untold.append(["validation", self._batches, metrics])

    def _save(self, *, wait: bool = False) -> None:
        """Save, once at a position. With `wait` the checkpoint is published on return.

        Without `wait` it may be written while training continues.
        """
        if self._saved_at == self._batches:
            if wait:
                self._finish_save()
            return
        self._finish_save()
        self._saved_at = self._batches
        # The chief writes what any rank has requested.
        self._asked = self._distributed.agree(self._asked)
        self._make_equal()
        if not self._alone:
            self._compare()
        progress = self.progress
        if not wait and self._writer is not None and self._writer.begin(progress):
            self._saved_reports = progress.untold
        elif self._save_to(progress) and not self._lost:
            self._progress.untold.clear()

    def _finish_save(self) -> None:
        """Wait, on every rank, for the checkpoint that is being written.

        Raises what the writer raised.
        """
        if self._writer is not None and self._writer.finish():
            saved = {id(each) for each in self._saved_reports}
            self._progress.untold = [
                each for each in self._progress.untold if id(each) not in saved
            ]
            self._saved_reports = []

    # The ranks must hold the same values, as one of them reports and saves for all

    def _make_equal(self) -> None:
        if not self._alone:
            self._adapter.synchronize()

    def _compare(self) -> None:
        """Raise TrialError if the weights differ between ranks, as no such model was trained."""
        found = self._distributed.allgather(self._adapter.fingerprint())
        other = next((rank for rank, checksum in enumerate(found) if checksum != found[0]), None)
        if other is not None:
            raise TrialError(
                f"at batch {self._batches} the weights of rank {other} differ from those of rank 0;"
                " step the optimizer by the context's own method, which reduces gradients over the"
                " ranks, and change weights alike on each rank"
            )

    # The host: the chief sends, and every rank gets the reply

    def _request_target(self, request: Callable[[], Target]) -> Target:
        reply: Target | None = None
        if self._distributed.rank == 0 and not self._lost:
            with suppress(HostLost):
                reply = request()
        if not self._alone:
            reply = broadcast_target(self._distributed.broadcast, reply)
        if reply is None:
            self._lost = True
            return self._target
        return reply

    def _send_report(self, group: str, batches: int, metrics: dict[str, Any]) -> None:
        """Send a report, and keep it until the driver is known to have stored it."""
        self._progress.untold.append([group, batches, metrics])
        if self._distributed.rank == 0 and not self._lost:
            try:
                if self._target.n and self._length < NEVER:
                    self._host.report_at(min(1.0, batches / self._length), group, batches, metrics)
                else:
                    self._host.report(group, batches, metrics)
            except HostLost:
                self._lost = True

    def _send_reports_again(self) -> None:
        """Send reports that an earlier run could not send.

        The host keeps one of each group and position.
        """
        untold, self._progress.untold = self._progress.untold, []
        if not untold or not self._distributed.broadcast(self._host.stores):
            return
        for group, batches, metrics in untold:
            if group == "training":
                self._send_report(group, batches, metrics)
            # A validation at the target is reported as complete when the run concludes.
            elif batches < self._length or self._target.n is None:
                self._set_target(
                    self._request_target(partial(self._host.validated, batches, metrics, None))
                )

    def _set_target(self, target: Target) -> None:
        """Convert the target to batches. This is the only place that does."""
        self._target = target
        self._length = (
            self._batches if target.n is None else to_batches(target.n, target.unit, self._adapter)
        )

    # Metrics

    def _take_numbers(self) -> None:
        """Move metrics from the device to the pending numbers, after those of an earlier run."""
        if self._rows:
            self._progress.pending.extend(self._adapter.numbers(self._rows))
            self._progress.counts.extend(self._counts)
            self._rows.clear()
            self._counts.clear()

    def _with_time(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Add `batches` and `epochs`, unless the trial reports them.

        Searchers measure time in them.
        """
        complete = dict(metrics)
        complete.setdefault("batches", self._batches)
        epoch = self._adapter.batches_per_epoch
        if epoch:
            complete.setdefault("epochs", self._batches / epoch)
        return complete


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _copy(progress: Progress) -> Progress:
    return replace(
        progress,
        pending=list(progress.pending),
        counts=list(progress.counts),
        untold=list(progress.untold),
    )
