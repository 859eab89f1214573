"""A search: its searcher, and what each trial is to do next. Pure: events in, operations out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..search import Close, Create, Exit, Operation, Searcher, Shutdown, Train
from ._events import Event, Exited, Reopened, Started, Validated
from ._rungs import Rungs


@dataclass
class Plan:
    """One trial as its searcher wants it.

    `until` is the length to train to, in the searcher's unit, None until the trial ends by itself. `wanted` says that
    there is training to do; a trial that is neither wanted nor closed waits for its searcher.
    """

    request: int
    hparams: dict[str, Any]
    seed: int
    source: int | None
    until: int | None = 0
    wanted: bool = False
    closed: bool = False
    exited: Exit | None = None

    @property
    def runnable(self) -> bool:
        return self.wanted and not self.closed and self.exited is None


class Search:
    """Tells the searcher of events and keeps what it answers."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.plans: dict[int, Plan] = {}
        self.rungs = Rungs()
        self.over: Shutdown | None = None

    @classmethod
    def replayed(cls, searcher: Searcher, events: Iterable[Event]) -> Search:
        """Return the search after these events."""
        search = cls(searcher)
        for event in _without_reopened(list(events)):
            search.apply(event)
        return search

    def apply(self, event: Event) -> list[Operation]:
        """Take an event; return what follows from it, already applied to the plans."""
        if isinstance(event, Started):
            operations = self.searcher.start()
        elif isinstance(event, Validated):
            operations = self._validated(event)
        elif isinstance(event, Exited):
            self._exited(self.plans[event.trial], event.reason)
            operations = self.searcher.exited(event.trial, event.reason)
        else:
            operations = []
        for operation in operations:
            self._follow(operation)
        return operations

    def progress(self, of_trials: dict[int, float]) -> float:
        """Return how much of the search is done, 0 to 1."""
        return min(1.0, max(0.0, self.searcher.progress(of_trials)))

    def _validated(self, event: Validated) -> list[Operation]:
        plan = self.plans[event.trial]
        if plan.exited is not None:
            return []
        operations = self.searcher.validated(event.trial, event.length, event.metrics)
        if plan.runnable and plan.until is not None and event.length >= plan.until:
            plan.wanted = False
            self.rungs.reach(plan.until)
        return operations

    def _exited(self, plan: Plan, reason: Exit) -> None:
        self._give_up(plan)
        plan.exited = reason

    def _give_up(self, plan: Plan) -> None:
        if plan.runnable:
            self.rungs.aim(plan.until, -1)

    def _follow(self, operation: Operation) -> None:
        if isinstance(operation, Create):
            self.plans[operation.trial] = Plan(
                operation.trial, operation.hparams, operation.seed, operation.source, until=None
            )
        elif isinstance(operation, Train):
            plan = self.plans[operation.trial]
            self._give_up(plan)
            plan.until, plan.wanted = operation.until, True
            self.rungs.aim(plan.until)
        elif isinstance(operation, Close):
            self._give_up(self.plans[operation.trial])
            self.plans[operation.trial].closed = True
        else:
            self.over = operation


def _without_reopened(events: list[Event]) -> list[Event]:
    """Drop the exits that a later event took back."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Reopened):
            kept = [e for e in kept if not (isinstance(e, Exited) and e.trial == event.trial)]
        else:
            kept.append(event)
    return kept
