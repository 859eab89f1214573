"""The trials of one driver: what each is at, and whose turn it is to get slots."""

from __future__ import annotations

import heapq
import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from det_core.host import Outcome
from det_core.protocol import Finished

from ..store import Lease, Run, TrialState
from ._search import TrialPlan

GOOD = (Outcome.COMPLETED, Outcome.PREEMPTED, Outcome.USER_STOPPED)
_CAUSES = {
    signal.SIGKILL: "most often the machine or its container had no memory left",
    signal.SIGSEGV: "compiled code crashed; with PYTHONFAULTHANDLER=1 the log says where",
    signal.SIGABRT: "compiled code gave up; the log has its last words",
    signal.SIGBUS: "most often /dev/shm or a disk was full",
    signal.SIGILL: "compiled code was made for another processor",
}


def how_it_ended(status: int) -> str:
    """Say how a process ended: with which status, or by which signal, and what most often sends that.

    A negative status is a signal's, and so is what shells make of it, 128 and its number.
    """
    try:
        number = signal.Signals(-status if status < 0 else status - 128)
    except ValueError:
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    cause = _CAUSES.get(number)
    return f"was killed by {number.name}" + (f": {cause}" if cause else "")


@dataclass
class ActiveRun:
    """A run that is executing, on the machines `nodes`.

    `heard` is the newest word that was taken from each of its workers' connections, `told` up to where the engine knows that.
    `stopping` says that it was told, in an answer, to stop. `adopted` says that an earlier driver started it, and may have
    asked it to end. `launched` says that the engine's process is not a rank, but the launcher of ranks on several hosts.
    `deadline`, of the monotonic clock, is when a run that was asked to end is killed. `unstarted` says why it never began.
    """

    run: Run
    lease: Lease
    nodes: tuple[str, ...] = ("",)
    heard: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    adopted: bool = False
    preempting: bool = False
    stopping: bool = False
    outcome: Outcome | None = None
    message: str = ""
    traceback: str = ""
    progressed_to: int = 0
    validated_at: int = -1
    launched: bool = False
    spoken: set[int] = field(default_factory=set)
    deadline: float = math.inf
    unstarted: str = ""

    @property
    def several(self) -> bool:
        """Whether the run has several ranks."""
        return len(self.lease.slots) > 1

    def finished(self, rank: int, word: Finished) -> None:
        """Take a rank's last word: the first one counts, unless it only says that another rank is gone."""
        self.spoken.add(rank)
        if self.outcome is None or (self.outcome is Outcome.PEER_LOST and word.outcome is not Outcome.PEER_LOST):
            self.outcome, self.message, self.traceback = word.outcome, word.message, word.traceback

    def ended(self, rank: int, status: int, fenced: bool = False) -> None:
        """Take the status of the process that failed first: one that was killed had no last word, and is the others' cause.

        What was `fenced` is as good as preempted: it had no driver for too long.
        """
        if fenced:
            return self.finished(rank, Finished(Outcome.PREEMPTED))
        if not self.several or self.launched or status == 0 or rank in self.spoken or self.outcome in GOOD:
            return
        if self.outcome in (None, Outcome.PEER_LOST) or status == -signal.SIGKILL:
            self.outcome, self.message, self.traceback = None, f"rank {rank} {how_it_ended(status)}", ""


@dataclass
class LiveTrial:
    """One trial: its row's id and state, its plan, and its run while it has one.

    `begun` says that it may have had runs, `source` is the checkpoint from which the first one starts. `failure` is the last
    failure and where it happened, to tell one that repeats itself. `fruitless` counts the runs in a row that were taken from
    it before they got any further.
    """

    id: int
    plan: TrialPlan
    state: TrialState = TrialState.QUEUED
    source: str | None = None
    begun: bool = False
    restarts: int = 0
    fruitless: int = 0
    progress: float = 0.0
    active: ActiveRun | None = None
    failure: tuple[str, int] | None = None
    blocked: bool = False

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

    def __iter__(self) -> Iterator[LiveTrial]:
        return iter(list(self._trials.values()))

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
