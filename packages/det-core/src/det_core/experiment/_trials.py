"""The trials of one driver: rows of the store beside plans of the search, and the run each has now."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import wire
from ..host import Outcome
from ..store import Lease, Run
from ._search import Plan


@dataclass
class Active:
    """A run that is executing."""

    run: Run
    lease: Lease
    connections: list[wire.Connection] = field(default_factory=list)
    preempting: bool = False
    outcome: Outcome | None = None
    message: str = ""
    traceback: str = ""
    progressed_to: int = 0
    validated_at: int = -1


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
