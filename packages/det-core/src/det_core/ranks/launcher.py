"""The interface of launchers, which know what the ranks of a framework need in order to meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from .backend import Ranks


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank of a launch, its host's address, and a port that is reserved for it there."""

    ranks: Ranks
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All ranks of a launch, in order.

    - `here`: the address at which the ranks reach the launching process.
    - `start_timeout`: within how many seconds the ranks must meet.
    - `objects`: a port that is reserved on the chief's host, for objects that ranks exchange apart
      from their framework.
    """

    places: Sequence[Place]
    here: str
    start_timeout: float
    objects: int = 0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.places)


class Launcher(ABC):
    """Gives the ranks of one framework the variables by which they meet.

    On several hosts, each of `interface_variables` is set to the network interface by which a host
    reaches the others, unless the variable is set already. Some libraries would use the interface
    of the host's own name, which may be loopback.
    """

    interface_variables: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def meeting(self, layout: Layout) -> AbstractContextManager[Sequence[Mapping[str, str]]]:
        """Yield the variables of each rank. A rendezvous that they need is open inside the context.

        The context is left after the last rank has ended. A single rank gets the variables of a
        world of one, and must not need the open context.
        """

    def port(self, layout: Layout, rank: int) -> int | None:
        """Return the port at which a rank listens, or connects, when it meets the others.

        None where this cannot be seen from outside. Then the framework has to notice a rank that
        does not come.
        """
        return None
