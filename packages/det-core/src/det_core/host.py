"""What a run's chief may tell its driver and ask of it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from .manifest import Manifest


class HostLost(Exception):
    """The driver is gone; what is being done should be saved and ended."""


class Outcome(enum.Enum):
    """How a run ended, as its worker tells.

    MISTAKE is the trial's own and would repeat itself; BLOCKED is the machine's (a full disk), to be resumed when mended;
    ERROR is any other exception of the user's code, which is tried again `max_restarts` times. PEER_LOST is what a rank
    says that found another one gone: it counts as an error, but any other rank knows better what happened.
    """

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    USER_STOPPED = "user_stopped"
    INVALID_HP = "invalid_hp"
    MISTAKE = "mistake"
    BLOCKED = "blocked"
    ERROR = "error"
    PEER_LOST = "peer_lost"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Train until here: an absolute length in `unit` (batches, records or epochs); `n` None means stop now.

    `best` tells, in the answer to a validation, whether it was the experiment's best so far.
    """

    n: int | None
    unit: str = "batches"
    best: bool = False


def told_to_all(broadcast: Callable[[Any], Any], target: Target | None) -> Target | None:
    """Return the chief's target on every rank, to which it goes as a plain word."""
    word = broadcast(None if target is None else msgspec.structs.asdict(target))
    return None if word is None else Target(**word)


@dataclass
class Flag:
    """A flag that one thread raises and another reads at every step, at the price of an attribute.

    `heeded` says that a script was told of it.
    """

    raised: bool = False
    heeded: bool = False
    reason: str = ""


class TrialHost(ABC):
    """The driver, as the chief of a run sees it. Every method may raise HostLost.

    `preempted` is raised by the driver (pause, cancel, a signal, a lost connection) and looked at between batches.

    A host that `stores` outlives the run: a later run tells it again what it may have missed, and it keeps one report of
    each group and position.
    """

    preempted: Flag
    stores: bool = True
    asks_next: bool = False
    """Whether a question follows what is told, as the loop knows: then nothing else need be waited for."""

    @abstractmethod
    def target(self) -> Target:
        """Ask until when to train."""

    @abstractmethod
    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group; returns before they are stored."""

    @abstractmethod
    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        """Report a validation, and return until when to train now.

        `length` is the target's `n` when the validation completes it, else None. When this returns, the report is stored.
        """

    @abstractmethod
    def checkpointed(self, manifest: Manifest, storage: str) -> bool | None:
        """Record a checkpoint that is published; when this returns, it is recorded.

        False says that it will be when the question is answered that follows, as `asks_next` says.
        """

    def progress(self, fraction: float) -> None:
        """Report how much of the target is done, 0 to 1."""

    def report_at(self, fraction: float, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics, and how much of the target is done."""
        self.report(group, batches, metrics)
        self.progress(fraction)

    def status(self, text: str) -> None:
        """Say in a word what the run is doing."""

    @abstractmethod
    def finished(self, outcome: Outcome, message: str = "") -> None:
        """Say how the run ended, as the last word."""

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        """Complete the target with a metric whose validation may have been reported before; return the next target."""
        return self.validated(batches, metrics, length)

    def deleted(self, uuid: str) -> None:
        """Record that a checkpoint's files are deleted."""

    def best_validation(self) -> float | None:
        """Ask for the best value of the searcher's metric in the whole experiment so far."""
        return None

    def close(self) -> None:
        """Give the connection back."""
