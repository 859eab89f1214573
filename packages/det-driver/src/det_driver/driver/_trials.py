"""The trials of one driver: their state, and their order in the queue for slots."""

from __future__ import annotations

import heapq
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from det_core.train.host import Outcome
from det_node.process import how_it_ended
from det_node.protocol import Finished

from ..store import Lease, Run, TrialState
from ._search import TrialPlan

GOOD = (Outcome.COMPLETED, Outcome.PREEMPTED, Outcome.USER_STOPPED)
FAILED = (
    Outcome.ERROR,
    Outcome.OUT_OF_MEMORY,
    Outcome.MISTAKE,
    Outcome.BLOCKED,
    Outcome.UNREACHABLE,
    Outcome.DAMAGED,
)


@dataclass
class Silence:
    """For how long a run has sent no message, and how often it did before. Times are monotonic.

    `reported`: this silence was reported to webhooks.
    """

    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    messages: int = 0
    reported: bool = False

    def end(self, now: float) -> None:
        """Note a message."""
        self.first = now if self.first is None else self.first
        self.messages += 1
        self.began, self.reported = now, False

    @property
    def usual(self) -> float | None:
        """The average seconds between messages, or None if it is unknown."""
        if self.first is None or self.messages < 2:
            return None
        return (self.began - self.first) / (self.messages - 1)


@dataclass
class ActiveRun:
    """A run that is executing.

    - `nodes`: where it runs.
    - `silence`: how long it has sent no message.
    - `acked`: the last sequence number handled of each connection of its workers.
    - `replied`: the last sequence number acknowledged to the engine, per connection.
    - `adopted`: an earlier driver started it, and may have preempted it.
    - `preempting`: it was preempted by this driver.
    - `stopping`: a reply said that it has no further target.
    - `progressed_to`, `validated_at`: the last batches that it has reported and validated.
    - `launched`: the engine's process is the launcher of ranks on several hosts, and not a rank.
    - `spoken`: the ranks that reported an outcome. `speaker` is the one whose outcome counts.
    - `deadline`: when a preempted run is killed, of the monotonic clock.
    - `terminate_at`: when a script that has not answered gets SIGTERM.
    - `waits`: it continues when its storage can be reached.
    - `killed`: why det killed it.
    - `unstarted`: why it never began.
    - `refused`: a message of it could not be handled.
    - `own_handler`: the script handles SIGTERM itself, and never asked whether it is to end.
    - `preempted`: its last message says that a driver, agent or signal had requested its end.
    - `exit_status`: what the script gave to `sys.exit`, as it says.
    - `failed_links`: the connections until an exception left the script. A later one may be that of
      a second attempt in the same run.
    """

    run: Run
    lease: Lease
    silence: Silence = field(default_factory=Silence)
    nodes: tuple[str, ...] = ("",)
    acked: dict[int, int] = field(default_factory=dict)
    replied: dict[int, int] = field(default_factory=dict)
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
    speaker: int = 0
    patience: float = math.inf
    deadline: float = math.inf
    terminate_at: float = math.inf
    waits: bool = False
    killed: str = ""
    unstarted: str = ""
    refused: bool = False
    own_handler: bool = False
    preempted: bool = False
    exit_status: int = 0
    failed_links: frozenset[int] = frozenset()

    @property
    def several(self) -> bool:
        """Whether the run has several ranks."""
        return len(self.lease.slots) > 1

    @property
    def uncaught(self) -> bool:
        """Whether a script has ended by a failure, whatever the status of the shell around it."""
        return bool(self.failed_links)

    def finished(self, rank: int, word: Finished, link: int = 0) -> None:
        """Handle a rank's outcome. The first one counts, unless it only says that a peer was lost.

        A rank that reports success and then fails has failed. A script that saves for a pause may
        do so. A script that failed may be started again in the same run, on another connection.
        """
        self.spoken.add(rank)
        gone = self.outcome is Outcome.PEER_LOST and word.outcome is not Outcome.PEER_LOST
        failed = self.outcome in GOOD and self.speaker == rank and word.outcome in FAILED
        # A rank that called sys.exit with a status is the cause of what the others raise.
        known = bool(self.exit_status) and word.outcome is Outcome.PEER_LOST
        late = self.outcome is Outcome.COMPLETED and word.uncaught and not known
        again = (
            self.uncaught
            and link not in self.failed_links
            # Other ranks of the failed attempt may still say what they lost.
            and rank == 0
            and word.outcome in GOOD
        )
        if again:
            self.failed_links = frozenset()
        if word.uncaught or word.status:
            self.failed_links = frozenset({*self.acked, link})
        if self.outcome is None or gone or failed or late or again:
            self.outcome, self.message, self.traceback = word.outcome, word.message, word.traceback
            self.speaker, self.own_handler = rank, word.own_handler
            self.preempted, self.exit_status = word.preempted, word.status

    def ended(self, rank: int, status: int, fenced: bool = False) -> None:
        """Handle the exit status of the process that failed first.

        A process that was killed reported no outcome, and is the cause of the other failures. A
        `fenced` run had no driver for too long, and counts as preempted.
        """
        if fenced:
            return self.finished(rank, Finished(Outcome.PREEMPTED))
        if (
            not self.several
            or self.launched
            or status == 0
            or rank in self.spoken
            or self.outcome in GOOD
        ):
            return
        if self.outcome in (None, Outcome.PEER_LOST) or status == -signal.SIGKILL:
            self.outcome, self.message, self.traceback = (
                None,
                f"rank {rank} {how_it_ended(status)}",
                "",
            )


@dataclass
class LiveTrial:
    """One trial: the id and state of its row, its plan, and its run while it has one.

    - `source`: the checkpoint from which the first run starts.
    - `begun`: it may have had runs.
    - `fruitless`: the runs in a row that were lost or preempted from outside without progress.
    - `progress`: the fraction done of the length `progress_to`.
    - `failure`: the last failure and its batch, to recognize a repeated one.
    - `repeats`: how often in a row the same failure has happened.
    - `stumbles`: the restarts in a row without progress.
    - `held`: its next start is delayed.
    - `blocked`: it cannot run until a user fixes the cause.
    """

    id: int
    plan: TrialPlan
    state: TrialState = TrialState.QUEUED
    source: str | None = None
    begun: bool = False
    restarts: int = 0
    fruitless: int = 0
    progress: float = 0.0
    progress_to: int | None = None
    active: ActiveRun | None = None
    failure: tuple[str, int] | None = None
    repeats: int = 0
    stumbles: int = 0
    held: bool = False
    blocked: bool = False

    @property
    def queued(self) -> bool:
        return self.active is None and self.plan.runnable and not self.blocked and not self.held


class Queue:
    """Trials that need training and have no run, in order of creation.

    The cost of a call does not depend on the number of trials.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._trials: dict[int, LiveTrial] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[LiveTrial]:
        return iter(list(self._trials.values()))

    def add(self, live: LiveTrial) -> None:
        """Add a trial if it waits for a slot and is not in the queue."""
        request = live.plan.request
        if live.queued and request not in self._trials:
            self._trials[request] = live
            heapq.heappush(self._heap, request)

    def clear(self) -> None:
        """Remove all trials."""
        self._heap.clear()
        self._trials.clear()

    def discard(self, live: LiveTrial) -> None:
        """Remove a trial that has started or ended."""
        self._trials.pop(live.plan.request, None)

    @property
    def first(self) -> LiveTrial | None:
        """The next trial to start, or None."""
        while self._heap:
            live = self._trials.get(self._heap[0])
            if live is not None and live.queued:
                return live
            self._trials.pop(heapq.heappop(self._heap), None)
        return None
