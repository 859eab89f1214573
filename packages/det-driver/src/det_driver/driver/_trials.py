"""The trials of one driver: rows of the store beside plans of the search, and the run each has now."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from det_core import wire
from det_core.host import Outcome
from det_core.protocol import Finished

from ..store import Lease, Run
from ._search import Plan

GOOD = (Outcome.COMPLETED, Outcome.PREEMPTED, Outcome.USER_STOPPED)


@dataclass
class Active:
    """A run that is executing.

    `meeting` is where its ranks meet, once the chief has said so, and `waiting` the connections of those that asked before.
    `launched` says that the engine's process is not a rank, but the launcher of ranks on several hosts.
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
    waiting: list[wire.Connection] = field(default_factory=list)
    launched: bool = False
    spoken: set[int] = field(default_factory=set)

    @property
    def several(self) -> bool:
        """Whether the run has several ranks."""
        return len(self.lease.slots) > 1

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
class Live:
    """One trial: its row's id, its plan, and its run while it has one.

    `failure` is the last failure and where it happened, to tell one that repeats itself. `waiting` says that the store has
    it as waiting for its searcher.
    """

    id: int
    plan: Plan
    restarts: int = 0
    progress: float = 0.0
    active: Active | None = None
    failure: tuple[str, int] | None = None
    blocked: bool = False
    waiting: bool = False
    status: str = field(default="")

    @property
    def queued(self) -> bool:
        return self.active is None and self.plan.runnable and not self.blocked
