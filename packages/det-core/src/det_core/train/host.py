"""What a run's chief reports to its driver and requests from it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..checkpoint.manifest import Manifest


TRAINING = "training"
"""The status of a run whose code is imported and whose state is restored."""


class HostLost(Exception):
    """The driver is gone. The run should save its state and end."""


class Outcome(enum.Enum):
    """How a run ended, as its worker reports it.

    - MISTAKE: an error of the trial that would repeat itself.
    - BLOCKED: a problem of the machine, such as a full disk. The run is resumed when it is solved.
    - UNREACHABLE: the checkpoint storage is not available. The run waits for it.
    - ERROR: any other exception of the user's code, which is tried again `max_restarts` times.
    - OUT_OF_MEMORY: as ERROR.
    - PEER_LOST: a rank lost another one. It counts as an error, but any other rank's failure
      explains it better.
    - DAMAGED: a checkpoint differs from what was written. An older one may be used.
    """

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    USER_STOPPED = "user_stopped"
    INVALID_HP = "invalid_hp"
    MISTAKE = "mistake"
    BLOCKED = "blocked"
    UNREACHABLE = "unreachable"
    OUT_OF_MEMORY = "out_of_memory"
    ERROR = "error"
    PEER_LOST = "peer_lost"
    DAMAGED = "damaged"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Train until this length in `unit` (batches, records or epochs). `n` is None to stop now.

    `best`, in the reply to a validation, says whether it is the experiment's best so far.
    """

    n: int | None
    unit: str = "batches"
    best: bool = False


def broadcast_target(broadcast: Callable[[Any], Any], target: Target | None) -> Target | None:
    """Return the chief's target on every rank. It is broadcast as a plain dict."""
    fields = broadcast(None if target is None else msgspec.structs.asdict(target))
    return None if fields is None else Target(**fields)


@dataclass
class Flag:
    """A flag that one thread raises and another one reads at every step, as an attribute.

    `heeded` says that a script has read it.
    """

    raised: bool = False
    heeded: bool = False
    reason: str = ""


class TrialHost(ABC):
    """The driver, as the chief of a run sees it. Every method may raise HostLost.

    `preempted` is raised by the driver (pause, cancel, a signal, a lost connection) and read
    between batches.

    A host that `stores` outlives the run. A later run reports again what the host may have missed,
    and the host keeps one report per group and position.
    """

    preempted: Flag
    stores: bool = True
    asks_next: bool = False
    """Whether the loop sends a request next, so that it need not wait for another reply before."""

    @abstractmethod
    def target(self) -> Target:
        """Request the target."""

    @abstractmethod
    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group. Returns before they are stored."""

    @abstractmethod
    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        """Report a validation, and return the new target.

        `length` is the target's `n` when the validation completes it, else None. The report is
        stored when this returns.
        """

    @abstractmethod
    def checkpointed(self, manifest: Manifest, storage: str) -> bool | None:
        """Record a checkpoint that is published. It is recorded when this returns.

        False means that it is recorded once the next request has its reply (`asks_next`).
        """

    def progress(self, fraction: float) -> None:
        """Report how much of the target is done, 0 to 1."""

    def report_at(
        self, fraction: float, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        """Report metrics, and how much of the target is done."""
        self.report(group, batches, metrics)
        self.progress(fraction)

    def status(self, text: str) -> None:
        """Report what the run is doing, in one word."""

    def notice(self, text: str) -> None:
        """Report a sentence for the user about a trial that continues."""

    def alert(self, title: str, description: str, level: str) -> None:
        """Send an alert to the webhooks that get its alerts."""

    @abstractmethod
    def finished(self, outcome: Outcome, message: str = "") -> None:
        """Report how the run ended, as its last message."""

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        """Complete the target with a metric, and return the next target.

        The metric's validation may have been reported before.
        """
        return self.validated(batches, metrics, length)

    def deleted(self, uuid: str) -> None:
        """Record that a checkpoint is deleted, before its files are.

        Raises DetError if it must be kept.
        """

    def best_validation(self) -> float | None:
        """Request the best value of the searcher's metric in the whole experiment so far."""
        return None

    def close(self) -> None:
        """Close the connection."""


class DriverHost(TrialHost):
    """The driver of a run, as any process of that run is connected to it."""

    @abstractmethod
    def finished(
        self,
        outcome: Outcome,
        message: str = "",
        traceback: str = "",
        *,
        wait: bool = True,
        own_handler: bool = False,
        uncaught: bool = False,
        status: int = 0,
    ) -> None:
        """Report how the process ended. With `wait`, wait for the reply.

        It is needed where other ranks may later report a failure that this one caused.

        - `own_handler`: the script handles SIGTERM itself, and never asked whether it is to end.
        - `uncaught`: the exception has left the script, which ends by it.
        - `status`: what the script gave to `sys.exit`.
        """
