"""Simulates a search without training."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct

from .base import Close, Create, Exit, Operation, Searcher, Train

_ENDED = -1
SAMPLES = 5


class Segment(Struct, frozen=True):
    """A stretch of training: `trial` has `slot` from `start` to `end`, in the searcher's units."""

    trial: int
    slot: int
    start: int
    end: int


class Simulation:
    """The outcome of `simulate`.

    - `trials`: the number of trials. `samples` has the hyperparameters of the first few.
    - `reached`: the number of trials that ended at each length (None: by themselves).
    - `units`: the units trained in total, over `makespan` units of time on `slots` slots.
    """

    def __init__(self) -> None:
        self.trials = 0
        self.samples: list[dict[str, Any]] = []
        self.reached: Counter[int | None] = Counter()
        self.units = 0
        self.makespan = 0
        self.slots = 0
        self._columns = tuple(array("q") for _ in range(4))

    def segments(self) -> Iterator[Segment]:
        """Yield the schedule, in order of start."""
        return map(Segment, *self._columns)

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._columns[0])

    @property
    def occupancy(self) -> float:
        """The fraction of the time for which the slots were in use."""
        held = self.slots * self.makespan
        return (sum(self._columns[3]) - sum(self._columns[2])) / held if held else 0.0


def simulate(searcher: Searcher, slots: int | None = None, seed: int = 0) -> Simulation:
    """Simulate the search of a searcher that has not started. No trial is trained.

    - Each trial reports one number in [0, 1) as its metric, at every length. The numbers are drawn
      from `seed`.
    - A searcher counts lengths in units, such as batches. One unit takes one unit of time, on one
      slot.
    - `slots` is the number of slots. None means that no trial ever waits for a slot.
    - A trial that continues keeps its slot. One that waits for a promotion holds none. The others
      start in the order in which they were requested.
    - A trial to which the searcher gives no length ends after one unit of time. `reached` counts it
      under None, and `units` does not count it.
    """
    return _Run(searcher, slots, seed).run()


class _Run:
    def __init__(self, searcher: Searcher, slots: int | None, seed: int) -> None:
        self.searcher = searcher
        self.outcome = Simulation()
        # It simulates a search, reproducibly.
        self.random = Random(seed).random
        self.metrics = _Metrics()
        # Of each trial. A length is the one that it has reached, or _ENDED.
        self.qualities = array("d")
        self.lengths = array("q")
        self.limit = slots
        self.free: list[int] = []
        self.queue: deque[tuple[int, int | None]] = deque()
        # A heap of: end, order, slot, trial, until.
        self.running: list[tuple[int, int, int, int, int | None]] = []
        self.now = 0

    def run(self) -> Simulation:
        self.obey(self.searcher.start(), None)
        self.fill()
        while self.running:
            self.now, _, slot, trial, until = heapq.heappop(self.running)
            self.obey(self.reported(trial, until), (trial, slot))
            self.fill()
        self.outcome.makespan = self.now
        return self.outcome

    def reported(self, trial: int, until: int | None) -> list[Operation]:
        if until is None:
            self.end(trial, None)
            return self.searcher.exited(trial, Exit.COMPLETED)
        self.lengths[trial] = until
        self.metrics.value = self.qualities[trial]
        if self.searcher.time_metric is not None:
            self.metrics[self.searcher.time_metric] = until
        return self.searcher.validated(trial, until, self.metrics)

    def obey(self, operations: list[Operation], held: tuple[int, int] | None) -> None:
        """Apply operations. `held` is the trial that has just reported, and its slot."""
        # The list grows during the loop.
        for operation in operations:
            if isinstance(operation, Train):
                if held is not None and operation.trial == held[0]:
                    self.begin(held[0], held[1], operation.until)
                    held = None
                else:
                    self.queue.append((operation.trial, operation.until))
            elif isinstance(operation, Create):
                self.outcome.trials += 1
                if len(self.outcome.samples) < SAMPLES:
                    self.outcome.samples.append(operation.hparams)
                self.qualities.append(self.random())
                self.lengths.append(0)
            elif isinstance(operation, Close):
                self.end(operation.trial, self.lengths[operation.trial])
                operations += self.searcher.exited(operation.trial, Exit.COMPLETED)
        if held is not None:
            heapq.heappush(self.free, held[1])

    def end(self, trial: int, reached: int | None) -> None:
        self.outcome.reached[reached] += 1
        self.lengths[trial] = _ENDED

    def fill(self) -> None:
        while self.queue:
            if not self.free:
                if self.outcome.slots == self.limit:
                    return
                heapq.heappush(self.free, self.outcome.slots)
                self.outcome.slots += 1
            trial, until = self.queue.popleft()
            if self.lengths[trial] != _ENDED:
                self.begin(trial, heapq.heappop(self.free), until)

    def begin(self, trial: int, slot: int, until: int | None) -> None:
        length = 1 if until is None else until - self.lengths[trial]
        if until is not None:
            self.outcome.units += length
        end = self.now + length
        for column, value in zip(self.outcome._columns, (trial, slot, self.now, end), strict=True):
            column.append(value)
        heapq.heappush(self.running, (end, len(self.outcome), slot, trial, until))


class _Metrics(dict[str, float]):
    """Has the quality of the reporting trial under any name."""

    value = 0.0

    def __missing__(self, name: str) -> float:
        return self.value
