"""A search as it is journaled: what its searcher was told, in order, and what each trial is to do next.

Pure: events in, operations out. Replaying the journal gives the same search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from det_core.config import Custom, ExperimentConfig
from det_core.entrypoint import make_importable
from det_core.errors import DetError
from det_core.plugins import Plugins
from det_core.storage import Storage

from ..search import Close, Create, Exit, Operation, Searcher, Shutdown, Train
from ..store import dump, load


class SearchStarted(msgspec.Struct, frozen=True, tag="started"):
    """The search begins."""


class TrialValidated(msgspec.Struct, frozen=True, tag="validated"):
    """A trial (by the searcher's number) reported a validation at `length`, in the searcher's unit."""

    trial: int
    length: int
    batches: int
    metrics: dict[str, Any]


class TrialExited(msgspec.Struct, frozen=True, tag="exited"):
    """A trial ended for good."""

    trial: int
    reason: Exit


class TrialReopened(msgspec.Struct, frozen=True, tag="reopened"):
    """A trial that had ended in an error is to go on: the replay passes over its exit before this."""

    trial: int


SearchEvent = SearchStarted | TrialValidated | TrialExited | TrialReopened
_events: msgspec.json.Decoder[SearchEvent] = msgspec.json.Decoder(SearchEvent)


def encode_event(event: SearchEvent) -> str:
    """Return the event as JSON text; with NaN and Infinity."""
    text = msgspec.json.encode(event)
    return dump(msgspec.to_builtins(event)) if b"null" in text else text.decode()


def decode_event(data: bytes) -> SearchEvent:
    try:
        return _events.decode(data)
    except msgspec.DecodeError:  # NaN and Infinity, which few events have
        return msgspec.convert(load(data), _events.type)


@dataclass(slots=True)
class TrialPlan:
    """One trial as its searcher wants it.

    `until` is the length to train to, in the searcher's unit, None until the trial ends by itself. `wanted` says that
    there is training to do; a trial that is neither wanted nor closed waits for its searcher.
    """

    request: int
    hparams: dict[str, Any]
    seed: int
    source: int | None
    until: int | None = None
    wanted: bool = False
    closed: bool = False
    exited: Exit | None = None

    @property
    def runnable(self) -> bool:
        return self.wanted and not self.closed and self.exited is None


class JournaledSearch:
    """Tells the searcher of events and keeps what it answers."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.plans: dict[int, TrialPlan] = {}
        self._rungs: dict[int, RungCount] = {}
        self.over: Shutdown | None = None

    @classmethod
    def replayed(cls, searcher: Searcher, events: Iterable[SearchEvent]) -> JournaledSearch:
        """Return the search after these events."""
        search = cls(searcher)
        known = list(events)
        search.replay(known, Counter(event.trial for event in known if isinstance(event, TrialReopened)))
        return search

    def replay(self, events: Iterable[SearchEvent], reopened: Counter[int]) -> None:
        """Take past events; of a trial that was `reopened` so many times, as many exits are passed over."""
        for event in events:
            if isinstance(event, TrialReopened):
                reopened[event.trial] -= 1
            elif not (isinstance(event, TrialExited) and reopened[event.trial]):
                self.apply(event)

    def apply(self, event: SearchEvent) -> list[Operation]:
        """Take an event; return what follows from it, already applied to the plans."""
        operations = self._told(event)
        for operation in operations:
            self._follow(operation)
        return operations

    def progress(self, of_trials: dict[int, float]) -> float:
        """Return how much of the search is done, 0 to 1."""
        return min(1.0, max(0.0, self.searcher.progress(of_trials)))

    @property
    def rungs(self) -> tuple[RungCount, ...]:
        """The lengths that were asked for, from the lowest; counted as the search goes on, whatever its size."""
        return tuple(replace(self._rungs[length]) for length in sorted(self._rungs))

    def counted(self, rungs: Iterable[RungCount]) -> None:
        """Take over the counts of a search that goes on here."""
        self._rungs = {rung.length: rung for rung in rungs}

    def _told(self, event: SearchEvent) -> list[Operation]:
        match event:
            case SearchStarted():
                return self.searcher.start()
            case TrialValidated():
                plan = self.plans[event.trial]
                if plan.exited is not None:
                    return []
                operations = self.searcher.validated(event.trial, event.length, event.metrics)
                if plan.runnable and plan.until is not None and event.length >= plan.until:
                    self._give_up(plan)
                    plan.wanted = False
                    self._rungs[plan.until].reached += 1
                return operations
            case TrialExited():
                plan = self.plans[event.trial]
                self._give_up(plan)
                plan.exited = event.reason
                operations = self.searcher.exited(event.trial, event.reason)
                if event.reason is Exit.CANCELED:  # the experiment is: nothing is to begin any more
                    return [operation for operation in operations if isinstance(operation, Shutdown)]
                return operations
            case TrialReopened():
                return []

    def _give_up(self, plan: TrialPlan) -> None:
        if plan.runnable and plan.until is not None:
            self._rungs[plan.until].under_way -= 1

    def _follow(self, op: Operation) -> None:
        if isinstance(op, Create):
            self.plans[op.trial] = TrialPlan(op.trial, op.hparams, op.seed, op.source)
        elif isinstance(op, Train):
            plan = self.plans[op.trial]
            self._give_up(plan)
            plan.until, plan.wanted = op.until, True
            if plan.until is not None:
                self._rungs.setdefault(plan.until, RungCount(plan.until)).under_way += 1
        elif isinstance(op, Close):
            self._give_up(self.plans[op.trial])
            self.plans[op.trial].closed = True
        else:
            self.over = op


class AskedLength(NamedTuple):
    """A length that a searcher asked of a trial, None until it ends by itself; `at` is the position at which it was reached."""

    until: int | None
    at: int | None


def lengths_asked(searcher: Searcher, events: Iterable[SearchEvent], trial: int) -> list[AskedLength]:
    """Return the lengths that were asked of a trial (by the searcher's number), in turn, in a search with these events."""
    search, known, found = JournaledSearch(searcher), list(events), list[AskedLength]()
    reopened = Counter(event.trial for event in known if isinstance(event, TrialReopened))
    for event in known:
        search.replay([event], reopened)
        if isinstance(event, TrialValidated) and event.trial == trial and found:
            until, at = found[-1]
            if at is None and until is not None and event.length >= until:
                found[-1] = AskedLength(until, event.batches)
        plan = search.plans.get(trial)
        if plan is not None and plan.runnable and (not found or plan.until != found[-1].until):
            found.append(AskedLength(plan.until, None))
    return found


def searcher_of(config: ExperimentConfig, plugins: Plugins, code_dir: Path) -> Searcher:
    """Return an experiment's searcher, to which nothing has happened; a custom one is of the experiment's code."""
    if config.searcher is None:
        raise DetError("the experiment has no searcher; add one to its configuration")
    if isinstance(config.searcher, Custom):
        make_importable(code_dir)
    seed, record = config.reproducibility.experiment_seed or 0, plugins.searchers()[config.searcher.name]
    searcher: Searcher = record.make(config.searcher, config.hyperparameters, seed)
    return searcher


@dataclass
class RungCount:
    """One length that a searcher asks for: how many trials have reached it, and how many are on the way.

    In searches without rungs it is the only length, or one of pbt's rounds.
    """

    length: int
    reached: int = 0
    under_way: int = 0


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """Where a search stands: how much is done (0 to 1), its trials counted, its rungs from the lowest.

    `resting` says of the trials that have not ended and do not run, by id, whether they are `queued` or `waiting`.
    """

    progress: float
    trials: int
    running: int
    queued: int
    ended: int
    rungs: tuple[RungCount, ...]
    resting: Mapping[int, str]

    @property
    def waiting(self) -> int:
        """How many trials wait for their searcher."""
        return self.trials - self.running - self.queued - self.ended


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """An experiment as observers see it; `search()` counts its trials, and is to be called in a hook only.

    `storage()` opens its checkpoint storage.
    """

    id: int
    name: str
    config: ExperimentConfig
    directory: Path
    tensorboard_dir: Path
    search: Callable[[], SearchView]
    storage: Callable[[], Storage]


UNITS = ("batches", "epochs", "records")


def unit_of(config: ExperimentConfig) -> str:
    """Return the unit of the searcher's lengths: that of `max_length`, or the time metric, which may be one of the trial's own."""
    searcher: msgspec.Struct | None = config.searcher
    length = getattr(searcher, "max_length", None) or getattr(searcher, "length_per_round", None)
    if length is not None:
        return str(length.unit)
    return getattr(searcher, "time_metric", None) or "batches"
