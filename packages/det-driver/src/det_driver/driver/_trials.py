"""The trials of one driver: what each is at, whose turn it is to get slots, and which is the best."""

from __future__ import annotations

import heapq
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from det_core import wire
from det_core.host import Outcome
from det_core.protocol import Finished

from ..store import Lease, Run, Store
from ._search import TrialPlan

GOOD = (Outcome.COMPLETED, Outcome.PREEMPTED, Outcome.USER_STOPPED)


@dataclass
class ActiveRun:
    """A run that is executing.

    `meeting` is where its ranks meet, once the chief has said so, and `waiting` the connections of those that asked
    before, with the numbers of their questions.
    `launched` says that the engine's process is not a rank, but the launcher of ranks on several hosts. `deadline`, of the
    monotonic clock, is when a run that was asked to end is killed. `unstarted` says why it never began.
    """

    run: Run
    lease: Lease
    connections: list[wire.Connection] = field(default_factory=list)
    preempting: bool = False
    outcome: Outcome | None = None
    message: str = ""
    traceback: str = ""
    progressed_to: int = 0
    validated_at: int = -1
    meeting: tuple[str, int] | None = None
    waiting: list[tuple[wire.Connection, int]] = field(default_factory=list)
    launched: bool = False
    spoken: set[int] = field(default_factory=set)
    deadline: float = math.inf
    unstarted: str = ""

    @property
    def several(self) -> bool:
        """Whether the run has several ranks."""
        return len(self.lease.slots) > 1

    def passed(self, batches: int) -> None:
        """The run has reported something at a position."""
        self.progressed_to = max(self.progressed_to, batches)

    def finished(self, rank: int, word: Finished) -> None:
        """Take a rank's last word: the first one counts, unless it only says that another rank is gone."""
        self.spoken.add(rank)
        if self.outcome is None or (self.outcome is Outcome.PEER_LOST and word.outcome is not Outcome.PEER_LOST):
            self.outcome, self.message, self.traceback = word.outcome, word.message, word.traceback

    def ended(self, rank: int, status: int) -> None:
        """Take the status of the process that failed first: one that was killed had no last word, and is the others' cause."""
        if not self.several or self.launched or status == 0 or rank in self.spoken or self.outcome in GOOD:
            return
        if self.outcome in (None, Outcome.PEER_LOST) or status == -signal.SIGKILL:
            how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            self.outcome, self.message, self.traceback = None, f"rank {rank} {how}", ""


@dataclass
class LiveTrial:
    """One trial: its row's id, its plan, and its run while it has one.

    `failure` is the last failure and where it happened, to tell one that repeats itself. `waiting` says that the store has
    it as waiting for its searcher.
    """

    id: int
    plan: TrialPlan
    restarts: int = 0
    progress: float = 0.0
    active: ActiveRun | None = None
    failure: tuple[str, int] | None = None
    blocked: bool = False
    waiting: bool = False
    status: str = field(default="")

    def begin(self, active: ActiveRun) -> None:
        """Take up a run, whose beginning is committed."""
        self.active, self.waiting = active, False

    @property
    def queued(self) -> bool:
        return self.active is None and self.plan.runnable and not self.blocked


class Queue:
    """Trials that are to be trained and are not, in order of creation; each call costs the same for a million of them."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._trials: dict[int, LiveTrial] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def add(self, live: LiveTrial) -> None:
        """Take a trial if it wants a slot and is not listed yet."""
        request = live.plan.request
        if live.queued and request not in self._trials:
            self._trials[request] = live
            heapq.heappush(self._heap, request)

    def clear(self) -> None:
        """Forget all of them."""
        self._heap.clear()
        self._trials.clear()

    def discard(self, live: LiveTrial) -> None:
        """Forget a trial that has started or ended."""
        self._trials.pop(live.plan.request, None)

    @property
    def first(self) -> LiveTrial | None:
        """The trial whose turn it is."""
        while self._heap:
            live = self._trials.get(self._heap[0])
            if live is not None and live.queued:
                return live
            self._trials.pop(heapq.heappop(self._heap), None)
        return None


class Turns:
    """Leases slots for the trials of a queue, in order of creation.

    Where it was refused, it asks again only after `look_again`: slots come back when a run ends, and now and then from
    another experiment.
    """

    def __init__(
        self,
        store: Store,
        experiment_id: int,
        queue: Queue,
        *,
        each: int,
        devices: Sequence[str],
        most: int | None = None,
    ) -> None:
        self._store, self._id, self._queue = store, experiment_id, queue
        self._each, self._devices, self._most = each, devices, most
        self._refused = False
        self._waits = False  # on the waiting list of slots

    def look_again(self) -> None:
        """Slots may have come back."""
        self._refused = False

    def give_back(self, lease: Lease) -> None:
        """The slots of a run that has ended may go to the next."""
        self._store.slots.release(lease)
        self._refused = False

    def next(self, running: int) -> tuple[LiveTrial, Lease] | None:
        """Return the trial to start now and its slots; None where there is no trial, or no slot for the first."""
        if self._refused:
            return None
        live = self._queue.first
        if live is None:
            self._stop_waiting()
            return None
        full = self._each == 0 and running >= max(
            len(self._devices), 1
        )  # what needs no slot is to leave some of the machine, too
        lease = None if full else self._store.slots.lease(self._id, self._each, self._devices, most=self._most)
        if lease is None:
            self._refused = self._waits = True
            return None
        return live, lease

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._store.slots.stop_waiting(self._id)


class Best:
    """Keeps each trial's best value of the searcher's metric, and knows the best of all.

    A trial that goes back to a checkpoint may lose its best value; `put` says so.
    """

    def __init__(self, smaller_is_better: bool) -> None:
        self._sign = 1.0 if smaller_is_better else -1.0
        self._losses: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, trial: int, value: float | None) -> None:
        """A trial's best value is this now."""
        if value is None:
            self._losses.pop(trial, None)
            return
        loss = self._sign * value
        if self._losses.get(trial) != loss:
            self._losses[trial] = loss
            heapq.heappush(self._heap, (loss, trial))

    def offer(self, trial: int, value: float) -> None:
        """A trial reported this value; it counts if it is the trial's best."""
        before = self._losses.get(trial)
        if before is None or self._sign * value < before:
            self.put(trial, value)

    def beaten_by(self, value: float) -> bool:
        """Tell whether this would be the best of all."""
        best = self.value
        return best is None or self._sign * value < self._sign * best

    @property
    def value(self) -> float | None:
        """The best value, or None before there is any."""
        while self._heap:
            loss, trial = self._heap[0]
            if self._losses.get(trial) == loss:
                return self._sign * loss
            heapq.heappop(self._heap)
        return None
