"""The schedule of one run: how many batches, and what happens between them.

There is one loop, here, whoever owns the `for`: a plugin (torch), the framework (Keras, Lightning: a callback calls
`step`), or a chunk of graph (estimator, `steps_per_execution`).
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .adapter import number
from .errors import DetError, MetricError
from .host import Flag, HostLost, Target, TrialHost
from .schedule import NEVER, Schedule

if TYPE_CHECKING:
    from .adapter import Adapter, Metrics
    from .distributed import DistributedContext

B = TypeVar("B")
_SYNC_SECONDS = 1.0  # how late a preemption may be noticed where several ranks must agree
_ROWS = 4096  # batches whose metrics may stay on the device, however rarely they are reported
_SILENT = Flag()


class LoopError(RuntimeError):
    """An adapter broke the rules of the loop."""


class Stop(enum.Enum):
    """Why the loop asks the framework to stop; falsy while training goes on."""

    NO = ""
    COMPLETED = "completed"
    PREEMPTED = "preempted"
    USER_STOPPED = "stopped by the trial"

    def __bool__(self) -> bool:
        return self is not Stop.NO


_NO = Stop.NO


@dataclass(kw_only=True)
class Progress:
    """What of the loop must survive a restart, beside the framework's own state.

    `pending` are the numbers of batches trained since the last report, so that a report does not depend on where a run
    was interrupted; `counts` how many batches each stands for.
    """

    batches: int = 0
    validated_at: int = -1
    pending: list[dict[str, float]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


class Saver(Protocol):
    """Writes a checkpoint of the adapter and the progress, publishes and records it; collective over the ranks."""

    def __call__(self, progress: Progress) -> None: ...


class Loop:
    """Counts batches and, between them, runs whatever has fallen due.

    To an adapter it is `step`, `remaining`, `batches`, `done`, and `request_stop` where user code may ask for an end.
    """

    def __init__(
        self,
        adapter: Adapter[Any],
        schedule: Schedule,
        host: TrialHost,
        distributed: DistributedContext,
        save: Saver,
        progress: Progress | None = None,
    ) -> None:
        self._adapter = adapter
        self._schedule = schedule
        self._host = host
        self._distributed = distributed
        self._save_to = save
        self._progress = progress or Progress()
        self._alone = distributed.size == 1
        self._flag = host.preempted if self._alone else _SILENT
        self._rows: list[Metrics] = []
        self._counts: list[int] = []
        self._batches = self._progress.batches
        self._validated_at = self._progress.validated_at
        self._saved_at = self._batches if progress else -1
        self._first = self._batches
        self._stop = Stop.NO
        self._asked = self._break = self._lost = False
        self._sync_at, self._spacing, self._sync_time = self._batches + 1, 1, time.monotonic()
        self._target = Target(n=0)
        self._length = 0
        self._next = 0

    # What an adapter sees

    @property
    def done(self) -> int:
        """Batches trained before this run began: how far the data must be skipped."""
        return self._first

    @property
    def remaining(self) -> int:
        """Batches until something falls due: how many may be trained in one go; 0 when training must stop."""
        return 0 if self._stop else max(0, self._next - self._batches)

    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        """Record trained batches; truthy when the framework must stop.

        Call it after every batch, or after every chunk of at most `remaining` batches, whose means are `metrics`. Values
        may stay on the device; they become numbers at the next boundary. Raises LoopError after a stop, and for a chunk
        that passes a boundary.
        """
        done = self._batches + batches
        if done < self._next and batches > 0 and not (self._flag.raised or self._break):
            self._batches = done
            self._rows.append(metrics)
            self._counts.append(batches)
            return _NO
        return self._boundary(metrics, batches)

    def batches(self, source: Iterable[B]) -> Iterator[B]:
        """Yield batches of `source` until told to stop, for adapters that own their loop."""
        if self._stop:
            return
        for batch in source:
            yield batch
            if self._stop:
                return

    def request_stop(self) -> None:
        """End the trial, as complete, after the batch that is being trained; on any rank, for all."""
        self._asked = True
        self._break = self._alone

    # What core sees

    @property
    def stop(self) -> Stop:
        """Why the loop stopped, or `Stop.NO`."""
        return self._stop

    @property
    def progress(self) -> Progress:
        """The state to save: a snapshot, whose pending numbers are plain."""
        pending, counts = self._numbers()
        return Progress(batches=self._batches, validated_at=self._validated_at, pending=pending, counts=counts)

    def begin(self) -> Stop:
        """Learn the target, validate where that is asked first, and stop at once where nothing is left to train."""
        self._aim(self._ask(self._host.target))
        if self._stop:
            return self._stop
        if self._schedule.validate_first and self._batches == 0 and self._validated_at < 0:
            self._validate()
        if self._target.n is None:
            self._finish(Stop.COMPLETED)
        elif self._batches >= self._length:
            self._complete()
        self._plan()
        return self._stop

    # Boundaries

    def _boundary(self, metrics: Metrics, batches: int) -> Stop:
        self._check(batches)
        self._batches += batches
        self._rows.append(metrics)
        self._counts.append(batches)
        done, schedule = self._batches, self._schedule
        if done >= self._length or schedule.report.due(done) or schedule.validate.due(done) or schedule.checkpoint.due(done):
            self._report()
        elif len(self._rows) >= _ROWS:
            self._numbers()
        if done < self._length:
            if schedule.validate.due(done):
                self._validate()
            if schedule.checkpoint.due(done):
                self._save()
        stopping = self._agree()
        if stopping:
            self._finish(stopping)
        elif self._batches >= self._length:
            self._complete()
        self._plan()
        return self._stop

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
        """Set the position of the next boundary."""
        ahead = min(self._schedule.after(self._batches), self._length)
        self._next = min(ahead, self._batches + _ROWS) if self._alone else min(ahead, self._sync_at)

    def _agree(self) -> Stop:
        """Let every rank come to the same answer: go on, or stop for which reason."""
        preempted, asked = self._host.preempted.raised or self._lost, self._asked
        if not self._alone:
            now = time.monotonic()
            a_batch = (now - self._sync_time) / max(1, self._spacing)
            answers = self._distributed.allgather((preempted, asked, a_batch))
            preempted, asked = any(a[0] for a in answers), any(a[1] for a in answers)
            self._spacing = max(1, min(10_000, int(_SYNC_SECONDS / max(answers[0][2], 1e-6))))
            self._sync_at, self._sync_time = self._batches + self._spacing, now
        if preempted:
            return Stop.PREEMPTED
        return Stop.USER_STOPPED if asked else Stop.NO

    def _complete(self) -> None:
        """Validate at the target, hear from the searcher whether there is more, save and stop where there is not."""
        if self._target.n is not None:
            self._validate()
        if self._lost:
            self._finish(Stop.PREEMPTED)
        elif self._batches >= self._length:
            self._finish(Stop.COMPLETED)

    def _finish(self, why: Stop) -> None:
        if why is Stop.USER_STOPPED:
            self._report()
            self._validate()
        self._save()
        self._stop = why

    def _report(self) -> None:
        rows, counts = self._numbers()
        if not rows:
            return
        self._clear()
        metrics = self._with_time(self._adapter.reported(mean(rows, counts), rows))
        self._tell(lambda: self._host.report("training", self._batches, metrics))
        if self._target.n and self._length < NEVER:
            self._tell(lambda: self._host.progress(min(1.0, self._batches / self._length)))

    def _validate(self) -> None:
        if self._validated_at == self._batches and self._batches < self._length:
            return
        metrics = self._with_time(plain(self._adapter.validate()))
        self._check_searcher_metric(metrics)
        length = self._target.n if self._batches >= self._length else None
        target = self._ask(lambda: self._host.validated(self._batches, metrics, length))
        if self._lost:
            return
        self._validated_at = self._batches
        self._aim(target)
        policy = self._schedule.policy
        if policy == "all" or (policy == "best" and target.best):
            self._save()

    def _save(self) -> None:
        if self._saved_at == self._batches:
            return
        self._saved_at = self._batches
        self._save_to(self.progress)

    # The host: the chief speaks, every rank hears the answer

    def _ask(self, question: Any) -> Target:
        answer: Target | None = None
        if self._distributed.rank == 0:
            try:
                answer = question()
            except HostLost:
                answer = None
        if not self._alone:
            answer = self._distributed.broadcast(answer)
        if answer is None:
            self._lost = True
            return self._target
        return answer

    def _tell(self, message: Any) -> None:
        if self._distributed.rank == 0:
            try:
                message()
            except HostLost:
                self._lost = True

    def _aim(self, target: Target) -> None:
        """Turn the target into batches, once, here."""
        self._target = target
        if target.n is None:
            self._length = self._batches
            return
        self._length = to_batches(target.n, target.unit, self._adapter)

    # Metrics

    def _numbers(self) -> tuple[list[dict[str, float]], list[int]]:
        """Return every pending batch's numbers, those of an interrupted run first; they stay pending."""
        if self._rows:
            self._progress.pending.extend(self._adapter.numbers(self._rows))
            self._progress.counts.extend(self._counts)
            self._rows.clear()
            self._counts.clear()
        return list(self._progress.pending), list(self._progress.counts)

    def _clear(self) -> None:
        self._progress.pending.clear()
        self._progress.counts.clear()

    def _with_time(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Add `batches` and `epochs`, by which searchers tell time, unless the trial reports them itself."""
        complete = dict(metrics)
        complete.setdefault("batches", self._batches)
        epoch = self._adapter.batches_per_epoch
        if epoch:
            complete.setdefault("epochs", self._batches / epoch)
        return complete

    def _check_searcher_metric(self, metrics: Mapping[str, Any]) -> None:
        name = self._schedule.metric
        if name is None:
            return
        if name not in metrics:
            known = ", ".join(sorted(set(metrics) - {"batches", "epochs"})) or "nothing"
            raise MetricError(f"searcher.metric is {name!r}, but the validation returned {known}; return it, or name one of those")
        number(f"{name} (searcher.metric)", metrics[name])


def mean(rows: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Return the mean of each metric over the batches that hold it.

    Sums are exactly rounded (`math.fsum`), so that they do not depend on how a run was cut into pieces.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    means = {}
    for name in names:
        terms = [(row[name], count) for row, count in zip(rows, counts, strict=True) if name in row]
        means[name] = _sum(value * count for value, count in terms) / sum(count for _, count in terms)
    return means


def _sum(values: Iterable[float]) -> float:
    numbers = list(values)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)  # infinities of both signs have no exact sum


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what can be a number into one; text, lists and None stay as they are, bytes are dropped."""
    if not isinstance(metrics, Mapping):
        raise MetricError(f"validation returned {type(metrics).__name__}; return a dict of metrics by name")
    return {str(name): _plain(value) for name, value in metrics.items() if not isinstance(value, bytes)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return repr(value)


def to_batches(n: int, unit: str, adapter: Adapter[Any]) -> int:
    """Turn a length into batches, by the adapter's epoch length or batch size."""
    if unit == "batches":
        return n
    if unit == "epochs":
        epoch = adapter.batches_per_epoch
        if not epoch:
            raise DetError(f"a length of {n} epochs cannot be counted, as the data has no length; give it in batches")
        return n * epoch
    size = adapter.global_batch_size
    if not size:
        raise DetError(f"a length of {n} records cannot be counted without a global_batch_size; give it in batches")
    return max(1, n // size)
