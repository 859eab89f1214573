"""The processes of one run, as trials and scripts see them."""

from __future__ import annotations

from typing import Any

from .backend import Backend, Serial


class DistributedContext:
    """Rank, size and collectives of a run, the same for every backend and for one process as for many.

    Every rank must call a collective in the same order.
    """

    def __init__(self, backend: Backend | None = None) -> None:
        self._backend = backend or Serial()
        ranks = self._backend.ranks
        self.rank, self.size = ranks.rank, ranks.size
        self.local_rank, self.local_size = ranks.local_rank, ranks.local_size
        self.cross_rank, self.cross_size = ranks.cross_rank, ranks.cross_size

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value on the chief, None elsewhere."""
        values = self._backend.allgather(value)
        return values if self.rank == 0 else None

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks, on every rank."""
        return self._backend.allgather(value)

    def broadcast(self, value: Any) -> Any:
        """Return the chief's value on every rank."""
        return self._backend.broadcast(value)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._backend.barrier()

    def close(self) -> None:
        """Leave the others; safe to call twice."""
        self._backend.shutdown()
