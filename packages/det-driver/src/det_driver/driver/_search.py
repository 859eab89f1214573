"""A search as journaled: the events of its searcher in order, and the plan of each trial.

Pure: events in, operations out. Replaying the journal gives the same search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from det_core.config import Combined, Custom, ExperimentConfig
from det_core.errors import DetError, StoreError
from det_core.hooks import Plugins
from det_core.storage import Storage
from det_core.train.entrypoint import make_importable

from ..search import Close, Create, EarlierResult, Exit, Operation, Searcher, Shutdown, Train, made
from ..store import Event, TrialRow, dump, load


class SearchStarted(msgspec.Struct, frozen=True, tag="started"):
    """The search begins."""


class TrialValidated(msgspec.Struct, frozen=True, tag="validated"):
    """A trial (by the searcher's number) reported a validation at `length`.

    The length is in the searcher's unit.
    """

    trial: int
    length: int
    batches: int
    metrics: dict[str, Any]


class TrialExited(msgspec.Struct, frozen=True, tag="exited"):
    """A trial has ended and will not continue."""

    trial: int
    reason: Exit


class TrialReopened(msgspec.Struct, frozen=True, tag="reopened"):
    """A trial that ended in an error continues. The replay skips its exit before this event."""

    trial: int


class SearchStopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The search ends because its time is over. Its trials are closed."""


class SearchFilled(msgspec.Struct, frozen=True, tag="filled"):
    """`count` slots are idle while the last trials train, so further trials are created."""

    count: int


class SearchTaught(msgspec.Struct, frozen=True, tag="taught"):
    """The search begins with the results of earlier experiments."""

    results: tuple[EarlierResult, ...]


class SearchSteered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="steered"):
    """A user changes a search with `det search`, or an experiment with `det set`.

    So many more trials, one with each of these hyperparameters (by dotted names) before others, an
    end at a condition, no more slots than `max_slots`, and a priority and a weight in the queue for
    slots. What is left out stays as it was. A `max_slots` of 0 removes the limit.
    """

    add_trials: int = 0
    enqueue: tuple[dict[str, Any], ...] = ()
    stop_when: str | None = None
    max_slots: int | None = None
    priority: int | None = None
    weight: float | None = None

    @property
    def changes_search(self) -> bool:
        """Whether it changes which trials there are, and not only what they may use."""
        return bool(self.add_trials or self.enqueue or self.stop_when is not None)


SearchEvent = (
    SearchStarted
    | TrialValidated
    | TrialExited
    | TrialReopened
    | SearchStopped
    | SearchSteered
    | SearchTaught
    | SearchFilled
)
_events: msgspec.json.Decoder[SearchEvent] = msgspec.json.Decoder(SearchEvent)
_steered = msgspec.json.Decoder(SearchSteered)


def read_steering(args: Mapping[str, Any]) -> SearchSteered:
    """Return the change of a search, from the arguments of the command."""
    return msgspec.convert(args, _steered.type)


def encode_event(event: SearchEvent) -> str:
    """Return the event as JSON text, which may contain NaN and Infinity."""
    text = msgspec.json.encode(event)
    return dump(msgspec.to_builtins(event)) if b"null" in text else text.decode()


def decode_event(data: bytes) -> SearchEvent:
    try:
        return _events.decode(data)
    except msgspec.DecodeError:
        # Few events have NaN or Infinity, which msgspec does not parse.
        return msgspec.convert(load(data), _events.type)


def read_event(experiment_id: int, event: Event) -> SearchEvent:
    """Return an event of a journal. Raises StoreError for one that this det does not know."""
    try:
        return decode_event(event.data)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise StoreError(
            f"event {event.seq} of the journal of experiment {experiment_id} is none that this det"
            f" knows ({error}); go on with it in the det-driver that wrote it"
        ) from error


@dataclass(slots=True)
class TrialPlan:
    """The searcher's plan for one trial.

    - `until`: the length to train to, in the searcher's unit, or None until the trial ends by
      itself.
    - `wanted`: there is training to do. A trial that is neither wanted nor closed waits for its
      searcher.
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
    """Passes events to the searcher, and applies its operations to the plans."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.plans: dict[int, TrialPlan] = {}
        self._rungs: dict[int, RungCount] = {}
        self.over: Shutdown | None = None
        self.learnt: list[str] = []
        """Sentences that say what it learns from earlier experiments and what is left out."""
        self.max_slots: int | None = None
        """The most slots that its trials may have together, if a user has set it. 0 is no limit."""
        self.priority: int | None = None
        self.weight: float | None = None

    @classmethod
    def replayed(cls, searcher: Searcher, events: Iterable[SearchEvent]) -> JournaledSearch:
        """Return the search after these events."""
        search = cls(searcher)
        known = list(events)
        search.replay(
            known, Counter(event.trial for event in known if isinstance(event, TrialReopened))
        )
        return search

    def replay(self, events: Iterable[SearchEvent], reopened: Counter[int]) -> None:
        """Apply past events.

        Of a trial that was reopened, `reopened` is how often, and as many of its exits are skipped.
        """
        for event in events:
            if isinstance(event, TrialReopened):
                reopened[event.trial] -= 1
            elif not (isinstance(event, TrialExited) and reopened[event.trial]):
                self.apply(event)

    def apply(self, event: SearchEvent) -> list[Operation]:
        """Apply an event. Return its operations, which are already applied to the plans."""
        operations = self._handle(event)
        for operation in operations:
            self._follow(operation)
        return operations

    def progress(self, of_trials: dict[int, float]) -> float:
        """Return the progress of the search, 0 to 1."""
        return min(1.0, max(0.0, self.searcher.progress(of_trials)))

    @property
    def rungs(self) -> tuple[RungCount, ...]:
        """The lengths that were requested, from the lowest. They are counted incrementally."""
        return tuple(replace(self._rungs[length]) for length in sorted(self._rungs))

    def counted(self, rungs: Iterable[RungCount]) -> None:
        """Set the counts of a restored search."""
        self._rungs = {rung.length: rung for rung in rungs}

    def _handle(self, event: SearchEvent) -> list[Operation]:
        match event:
            case SearchStarted():
                return self.searcher.start()
            case TrialValidated():
                plan = self.plans[event.trial]
                if plan.exited is not None:
                    return []
                operations = self.searcher.validated(event.trial, event.length, event.metrics)
                if plan.runnable and plan.until is not None and event.length >= plan.until:
                    self._count_out(plan)
                    plan.wanted = False
                    self._rungs[plan.until].reached += 1
                return operations
            case TrialExited():
                plan = self.plans[event.trial]
                self._count_out(plan)
                plan.exited = event.reason
                operations = self.searcher.exited(event.trial, event.reason)
                if event.reason is Exit.CANCELED:
                    # The experiment is canceled, so no trial may begin.
                    return [
                        operation for operation in operations if isinstance(operation, Shutdown)
                    ]
                return operations
            case SearchStopped():
                return self.searcher.stop()
            case SearchFilled():
                return self.searcher.fill(event.count)
            case SearchTaught():
                self.learnt = self.searcher.learn(event.results)
                return []
            case SearchSteered():
                return self._steered(event)
            case TrialReopened():
                return []

    def _steered(self, event: SearchSteered) -> list[Operation]:
        operations: list[Operation] = []
        if event.max_slots is not None:
            self.max_slots = event.max_slots
        if event.priority is not None:
            self.priority = event.priority
        if event.weight is not None:
            self.weight = event.weight
        if event.stop_when is not None:
            operations += self.searcher.stop_at(event.stop_when)
        if event.add_trials or event.enqueue:
            operations += self.searcher.extend(event.add_trials, event.enqueue)
        if operations:
            # A search that was over continues.
            self.over = None
        return operations

    def _count_out(self, plan: TrialPlan) -> None:
        if plan.runnable and plan.until is not None:
            self._rungs[plan.until].under_way -= 1

    def _follow(self, op: Operation) -> None:
        if isinstance(op, Create):
            self.plans[op.trial] = TrialPlan(op.trial, op.hparams, op.seed, op.source)
        elif isinstance(op, Train):
            plan = self.plans[op.trial]
            self._count_out(plan)
            plan.until, plan.wanted = op.until, True
            if plan.until is not None:
                self._rungs.setdefault(plan.until, RungCount(plan.until)).under_way += 1
        elif isinstance(op, Close):
            self._count_out(self.plans[op.trial])
            self.plans[op.trial].closed = True
        else:
            self.over = op


class AskedLength(NamedTuple):
    """A length that a searcher requested for a trial, or None until it ends by itself.

    `at` is the batch at which it was reached.
    """

    until: int | None
    at: int | None


def lengths_asked(
    searcher: Searcher, events: Iterable[SearchEvent], trial: int
) -> list[AskedLength]:
    """Return the lengths that a search with these events requested for a trial, in order.

    `trial` is the searcher's number.
    """
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
    """Return an experiment's searcher in its initial state.

    The code of a custom searcher is the experiment's.
    """
    if config.searcher is None:
        raise DetError("the experiment has no searcher; add one to its configuration")
    own_sampler = isinstance(config.searcher, Combined) and ":" in config.searcher.sampler
    if isinstance(config.searcher, Custom) or own_sampler:
        make_importable(code_dir)
    seed, record = (
        config.reproducibility.experiment_seed or 0,
        plugins.searchers()[config.searcher.name],
    )
    return made(config.searcher, config.hyperparameters, seed, record.make, plugins.samplers())


@dataclass
class RungCount:
    """A length that a searcher requests, with the number of trials that reached it or train to it.

    In searches without rungs it is the only length, or that of a round of pbt.
    """

    length: int
    reached: int = 0
    under_way: int = 0


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """The state of a search: progress (0 to 1), counts of trials, and rungs from the lowest.

    `resting` maps the ids of trials that neither run nor have ended to `queued` or `waiting`.
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
    """An experiment as observers see it.

    `search()` counts its trials, and `trial(id)` reads one. Both may be called in a hook only, in
    the driver's thread. `storage()` opens its checkpoint storage.
    """

    id: int
    name: str
    config: ExperimentConfig
    directory: Path
    tensorboard_dir: Path
    search: Callable[[], SearchView]
    trial: Callable[[int], TrialRow]
    storage: Callable[[], Storage]


UNITS = ("batches", "epochs", "records")


def unit_of(config: ExperimentConfig) -> str:
    """Return the unit of the searcher's lengths.

    It is the unit of `max_length`, or the time metric, which may be one that the trial reports.
    """
    searcher: msgspec.Struct | None = config.searcher
    length = getattr(searcher, "max_length", None) or getattr(searcher, "length_per_round", None)
    if length is not None:
        return str(length.unit)
    return getattr(searcher, "time_metric", None) or "batches"
