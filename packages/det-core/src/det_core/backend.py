"""How the ranks of one run talk to one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where one process stands among those of its run.

    `local_*` count the processes on one host, `cross_*` the hosts.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


class Backend(ABC):
    """The verbs of communication that core and adapters need; every rank calls them in the same order."""

    ranks: Ranks

    @abstractmethod
    def init(self) -> None:
        """Meet the other ranks; afterwards `ranks` is known."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave the others; safe to call twice."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank is here."""

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks."""

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Return the chief's value on every rank."""

    def agree(self, flag: bool) -> bool:
        """Tell whether any rank's flag is set; every rank gets the same answer."""
        return any(self.allgather(flag))


class Serial(Backend):
    """The backend of a run with one process: every verb returns at once."""

    def __init__(self) -> None:
        self.ranks = Ranks()

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> None:
        pass

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def agree(self, flag: bool) -> bool:
        return flag
