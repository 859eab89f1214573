"""The ranks of a run before they have met."""

from __future__ import annotations

from typing import Any, NoReturn

from det_core.backend import Backend, Ranks
from det_core.errors import DetError


class Before(Backend):
    """Knows where this process stands, and cannot talk to the others yet."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> NoReturn:
        raise DetError(
            "the ranks of this run talk to one another once training has begun; ask for ranks and sizes before"
        )

    def allgather(self, value: Any) -> NoReturn:
        self.barrier()

    def broadcast(self, value: Any) -> NoReturn:
        self.barrier()
