"""The schedule of one run: how many batches, and what happens between them.

There is one loop, here, whoever owns the `for`: a plugin (torch), the framework (Keras, Lightning: a callback calls
`step`), or a chunk of graph (estimator, `steps_per_execution`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .adapter import Adapter, Loop, Metrics, Stop
from .errors import TrialError
from .host import Flag, HostLost, Target, TrialHost, told_to_all
from .metrics import mapping, mean, plain, searcher_metric
from .schedule import NEVER, Schedule, to_batches

if TYPE_CHECKING:
    from .backend import Communicator
    from .beside import Beside
    from .config import Length

_SYNC_SECONDS = 1.0  # how late a preemption may be noticed where several ranks must agree
_SPACING = 10_000  # the most batches between two such agreements
_ROWS = 4096  # batches whose metrics may stay on the device, however rarely they are reported
_SILENT = Flag()


class LoopError(RuntimeError):
    """An adapter broke the rules of the loop."""


_NO = Stop.NO


@dataclass(kw_only=True)
class Progress:
    """What of the loop must survive a restart, beside the framework's own state.

    `pending` are the numbers of batches trained since the last report, so that a report does not depend on where a run
    was interrupted; `counts` how many batches each stands for. `validation` holds the metrics of the validation at
    `validated_at`. `untold` are reports, as `[group, batches, metrics]`, that the driver may not have stored; it is told of
    them again. `asked` says that the trial asked for its end, `finished` that the framework has done what it does at the end.
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
    """The loop of a run: asks the host until when to train, and runs whatever has fallen due."""

    def __init__(
        self,
        adapter: Adapter[Any],
        schedule: Schedule,
        host: TrialHost,
        distributed: Communicator,
        save: Callable[[Progress], bool],
        progress: Progress | None = None,
        length: Length | None = None,
        beside: Beside | None = None,
    ) -> None:
        """`length` is what the trial is trained for if nothing ends it earlier: there the framework finishes.

        `save` writes a checkpoint and publishes it, on all ranks together, and returns whether the driver recorded it.
        `beside`, where there is one, does so while training goes on, and is waited for where a run ends or is complete.
        """
        self._adapter = adapter
        self._ends = length
        self._schedule = schedule
        self._host = host
        self._distributed = distributed
        self._save_to, self._beside = save, beside
        self._told: list[list[Any]] = []  # reports that are in the checkpoint being written
        self._progress = _copy(progress) if progress else Progress()
        self._alone = distributed.size == 1
        self._flag = host.preempted if self._alone else _SILENT
        self._rows: list[Metrics] = []
        self._counts: list[int] = []
        self._batches = self._progress.batches
        self._saved_at = self._batches if progress else -1
        self._first = self._batches
        self._stop = Stop.NO
        self._asked, self._break, self._lost = self._progress.asked, False, False
        self._synced, self._sync_time, self._sync_at = self._batches, time.monotonic(), self._batches
        self._next = self._batches
        self._aim(Target(n=None))

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
        self._fall_due()
        self._conclude()
        return self._stop

    def request_stop(self) -> None:
        self._asked = True
        self._break = self._alone

    @property
    def length(self) -> int | None:
        return to_batches(self._ends.n, self._ends.unit, self._adapter) if self._ends else None

    # What core sees

    @property
    def progress(self) -> Progress:
        """The state to save: a snapshot, whose pending numbers are plain."""
        self._take_numbers()
        return replace(_copy(self._progress), batches=self._batches, asked=self._asked)

    def begin(self) -> Stop:
        """Learn the target, catch up on what an interrupted run left due, and stop where nothing is left to train."""
        self._aim(self._ask(self._host.target))
        if self._progress.finished and self._batches < self._length:
            self._progress.finished = self._asked = False  # it was over for good, and now is to go on
        if not self._lost:
            self._tell_again()
        if self._batches > 0:
            self._fall_due()
        elif self._schedule.validate_first and self._length > 0 and not self._agree():
            self._validate()
        self._conclude()
        return self._stop

    def keep(self) -> None:
        """Save where training is, for whoever looks into why it ended; a single rank's own decision is not the others'."""
        if self._alone and self._batches:
            self._save(wait=True)

    # Boundaries

    def _fall_due(self) -> None:
        """Report, validate and save, as the position asks for; what happens at the target is another matter.

        A run that is to stop leaves the validation to the next one, which finds it due when it begins.
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
                f"step() called at batch {self._batches} after the loop had {self._stop.value}; stop training when step() is true"
            )
        if batches < 1:
            raise LoopError(f"step() was told of {batches} batches; tell it of 1 or more")
        if batches > self.remaining:
            raise LoopError(
                f"trained {batches} batches at once but only {self.remaining} were left before a boundary; "
                "train at most loop.remaining"
            )

    def _plan(self) -> None:
        if self._stop:
            self._next = 0
            return
        ahead = min(self._schedule.after(self._batches), self._length, self._batches + _ROWS)
        self._next = ahead if self._alone else min(ahead, self._sync_at)

    def _agree(self) -> Stop:
        """Let every rank come to the same answer: go on, or stop for which reason."""
        preempted = self._host.preempted.raised or self._lost
        saved = self._beside is not None and self._beside.ended
        if not self._alone:
            now = time.monotonic()
            a_batch = (now - self._sync_time) / max(1, self._batches - self._synced)
            answers = self._distributed.allgather((preempted, self._asked, a_batch, saved))
            saved = answers[0][3]  # the chief's, which writes
            preempted, self._asked = any(a[0] for a in answers), any(a[1] for a in answers)
            spacing = 1 if self._batches == self._synced else int(_SYNC_SECONDS / max(answers[0][2], 1e-6))
            self._synced, self._sync_time = self._batches, now
            self._sync_at = self._batches + max(1, min(_SPACING, spacing))
        if saved:
            self._settle()
        if preempted:
            return Stop.PREEMPTED
        return Stop.USER_STOPPED if self._asked else Stop.NO

    def _complete(self) -> None:
        """Validate at the target, hear from the searcher whether there is more, and stop where there is not.

        A new target may come to as many batches as the last one, in records; then it is complete at once.
        """
        complete: int | None = None
        while self._batches >= self._length and not self._lost and self._target.n not in (None, complete):
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
        """Let the framework do what it does at the end, once; what is measured and saved here is what it leaves."""
        if not self._progress.finished:
            self._adapter.finish()
            self._progress.finished = True
            self._progress.validated_at = self._saved_at = -1

    def _report(self) -> None:
        self._take_numbers()
        rows, counts = self._progress.pending, self._progress.counts
        if not rows:
            return
        self._progress.pending, self._progress.counts = [], []
        metrics = plain(self._with_time(self._adapter.reported(mean(rows, counts), rows)))
        self._tell("training", self._batches, metrics)

    def _validate(self) -> None:
        """Validate, tell, and save where the policy says so; never twice at one position.

        At the target the checkpoint comes before the telling, as the searcher may answer with a trial that starts from it.
        A position that becomes the target only after its validation is told again, as complete, and not measured again.
        """
        if self._progress.validated_at != self._batches:
            self._measure()
        elif self._batches < self._length:
            return
        complete = self._batches >= self._length
        if complete:
            self._host.asks_next = True
            self._save(wait=True)
        length = self._target.n if complete else None
        metrics = dict(self._progress.validation)
        self._aim(self._ask(lambda: self._host.validated(self._batches, metrics, length)))
        self._host.asks_next = False
        if self._lost:
            return
        self._progress.untold.clear()
        policy = self._schedule.policy
        if policy == "all" or (policy == "best" and self._target.best):
            self._save()

    def _measure(self) -> None:
        self._make_equal()
        raw = self._with_time(mapping(self._adapter.validate()))
        metrics = plain(raw)
        name = self._schedule.metric
        if name is not None:
            metrics[name] = searcher_metric(name, raw)
        self._progress.validated_at, self._progress.validation = self._batches, metrics
        self._progress.untold.append(["validation", self._batches, metrics])

    def _save(self, *, wait: bool = False) -> None:
        """Save, once at a position; with `wait` it is published on return, else perhaps while training goes on."""
        if self._saved_at == self._batches:
            if wait:
                self._settle()
            return
        self._settle()
        self._saved_at = self._batches
        self._asked = self._distributed.agree(self._asked)  # the chief writes what any rank has asked for
        self._make_equal()
        if not self._alone:
            self._compare()
        progress = self.progress
        if not wait and self._beside is not None and self._beside.begin(progress):
            self._told = progress.untold
        elif self._save_to(progress) and not self._lost:
            self._progress.untold.clear()

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, on every rank; what it failed of is raised."""
        if self._beside is not None and self._beside.settle():
            told = {id(each) for each in self._told}
            self._progress.untold = [each for each in self._progress.untold if id(each) not in told]
            self._told = []

    # The ranks: what one of them reports and saves is what all have

    def _make_equal(self) -> None:
        if not self._alone:
            self._adapter.synchronize()

    def _compare(self) -> None:
        """Refuse to save weights that are not those of every rank, which would be a model that nobody trained."""
        found = self._distributed.allgather(self._adapter.fingerprint())
        other = next((rank for rank, checksum in enumerate(found) if checksum != found[0]), None)
        if other is not None:
            raise TrialError(
                f"at batch {self._batches} the weights of rank {other} differ from those of rank 0; step the optimizer by the "
                "context's own method, which reduces gradients over the ranks, and change weights alike on each rank"
            )

    # The host: the chief speaks, every rank hears the answer

    def _ask(self, question: Callable[[], Target]) -> Target:
        answer: Target | None = None
        if self._distributed.rank == 0 and not self._lost:
            with suppress(HostLost):
                answer = question()
        if not self._alone:
            answer = told_to_all(self._distributed.broadcast, answer)
        if answer is None:
            self._lost = True
            return self._target
        return answer

    def _tell(self, group: str, batches: int, metrics: dict[str, Any]) -> None:
        """Report and, until the driver is known to have stored it, keep the report."""
        self._progress.untold.append([group, batches, metrics])
        if self._distributed.rank == 0 and not self._lost:
            try:
                if self._target.n and self._length < NEVER:
                    self._host.report_at(min(1.0, batches / self._length), group, batches, metrics)
                else:
                    self._host.report(group, batches, metrics)
            except HostLost:
                self._lost = True

    def _tell_again(self) -> None:
        """Tell of what an earlier run could not; the host keeps one report of a group and position."""
        untold, self._progress.untold = self._progress.untold, []
        if not untold or not self._distributed.broadcast(self._host.stores):
            return
        for group, batches, metrics in untold:
            if group == "training":
                self._tell(group, batches, metrics)
            elif batches < self._length or self._target.n is None:  # else it is told as complete when the run concludes
                self._aim(self._ask(partial(self._host.validated, batches, metrics, None)))

    def _aim(self, target: Target) -> None:
        """Turn the target into batches, once, here."""
        self._target = target
        self._length = self._batches if target.n is None else to_batches(target.n, target.unit, self._adapter)

    # Metrics

    def _take_numbers(self) -> None:
        """Turn what is still on the device into pending numbers, behind those of an interrupted run."""
        if self._rows:
            self._progress.pending.extend(self._adapter.numbers(self._rows))
            self._progress.counts.extend(self._counts)
            self._rows.clear()
            self._counts.clear()

    def _with_time(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Add `batches` and `epochs`, by which searchers tell time, unless the trial reports them itself."""
        complete = dict(metrics)
        complete.setdefault("batches", self._batches)
        epoch = self._adapter.batches_per_epoch
        if epoch:
            complete.setdefault("epochs", self._batches / epoch)
        return complete


def _copy(progress: Progress) -> Progress:
    return replace(progress, pending=list(progress.pending), counts=list(progress.counts), untold=list(progress.untold))
