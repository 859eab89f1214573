"""Drives a searcher through a search, without training."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from det_driver.search import Close, Create, Exit, Ledger, Operation, Searcher, Shutdown, Train

MOST_EVENTS = 20_000
Event = tuple[Any, ...]


class Play:
    """A search, event by event, in an order drawn from `seed`. Every operation is checked.

    `faults` is the probability that a trial ends instead of reporting. `nan` is the probability
    that it reports NaN. `early` is the probability that it also reports before its target.
    """

    def __init__(
        self,
        searcher: Searcher,
        seed: int = 0,
        *,
        faults: float = 0.0,
        nan: float = 0.0,
        early: float = 0.0,
        reasons: tuple[Exit, ...] = tuple(Exit),
    ) -> None:
        self.searcher = searcher
        self.ledger = Ledger(type(searcher).__name__)
        self.events: list[Event] = []
        self.operations: list[list[Operation]] = []
        self.created: list[Create] = []
        self.trained: dict[int, int] = {}
        self.over: Shutdown | None = None
        # The seed makes the order reproducible.
        self._random = Random(seed)
        self._faults, self._nan, self._early, self._reasons = faults, nan, early, reasons
        # Trials that have something to report, or that have to end.
        self._due: list[int] = []

    def finish(self) -> Play:
        """Continue until the search has shut down. Raises AssertionError if it does not."""
        while self.step():
            assert len(self.events) < MOST_EVENTS, f"the search goes on after {MOST_EVENTS} events"
        assert self.over is not None, (
            f"no trial has anything to do, yet no Shutdown came; open: {self.ledger.open}"
        )
        return self

    def step(self) -> bool:
        """Give the searcher the next event. Return False if there is none."""
        if not self.events:
            self._give(("start",))
            return True
        if not self._due:
            return False
        trial = self._due.pop(self._random.randrange(len(self._due)))
        self._give(self._next_of(trial))
        return True

    def _next_of(self, trial: int) -> Event:
        until = self.ledger.open.get(trial)
        if trial in self.ledger.open and self._random.random() < self._faults:
            return ("exited", trial, self._random.choice(self._reasons))
        if until is None:
            return ("exited", trial, Exit.COMPLETED)
        before = self.trained[trial]
        if until > before + 1 and self._random.random() < self._early:
            self._due.append(trial)
            return (
                "validated",
                trial,
                self._random.randrange(before + 1, until),
                self._metrics(before + 1),
            )
        return ("validated", trial, until, self._metrics(until))

    def _metrics(self, length: int) -> Mapping[str, float]:
        value = float("nan") if self._random.random() < self._nan else self._random.random()
        return MappingProxyType(reported(self.searcher, value, length))

    def _give(self, event: Event) -> None:
        self.events.append(event)
        if event[0] == "validated":
            self.trained[event[1]] = event[2]
        if event[0] == "exited":
            self.ledger.end(event[1])
        operations = give(self.searcher, event)
        self.operations.append(operations)
        self.ledger.note(operations)
        for operation in operations:
            self._follow(operation)

    def _follow(self, operation: Operation) -> None:
        if isinstance(operation, Create):
            self.created.append(operation)
            self.trained[operation.trial] = 0
        elif isinstance(operation, Train | Close):
            if operation.trial not in self._due:
                self._due.append(operation.trial)
        else:
            self.over = operation


def reported(searcher: Searcher, value: float, length: int) -> dict[str, Any]:
    """Return the metrics of a trial's report.

    They are the searcher's metric, and its time metric if it has one.
    """
    metrics = {searcher.metric or "validation_loss": value}
    return metrics if searcher.time_metric is None else metrics | {searcher.time_metric: length}


def give(searcher: Searcher, event: Event) -> list[Operation]:
    """Give a searcher an event, and return its operations."""
    name, *arguments = event
    operations: list[Operation] = getattr(searcher, name)(*arguments)
    return list(operations)
