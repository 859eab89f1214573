"""What a launcher is: it knows what the ranks of a framework must find in their environment to meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from .backend import Ranks


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank of a launch: where it stands, the address of its host, and a port there that is kept free for it."""

    ranks: Ranks
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All ranks of a launch, in their order.

    `here` is the address at which they reach the process that launches them. They have `start_timeout` seconds to meet.
    `objects` is a port that is kept free on the first one's host, for what they send each other beside their framework.
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
    """Tells the ranks of one framework where they meet; a rendezvous that they need is open meanwhile.

    `interface_variables` are set, on several hosts, to the name of the network interface by which a host reaches the others,
    unless somebody has set them: some libraries would take that of the host's own name, which may be loopback.
    """

    interface_variables: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def meeting(self, layout: Layout) -> AbstractContextManager[Sequence[Mapping[str, str]]]:
        """Give the variables of each rank, which hold until the context is left: after the last rank has ended.

        A single rank gets what makes a world of one, and must not need anything that the context holds.
        """

    def port(self, layout: Layout, rank: int) -> int | None:
        """Return the port at which a rank listens, or to which it connects, once it has come to the meeting.

        None where that cannot be seen from outside; then the framework has to notice a rank that does not come.
        """
        return None
