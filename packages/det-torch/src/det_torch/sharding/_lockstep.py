"""Batches that all ranks go through together, as each forward pass of a sharded model needs all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from det_core import Communicator

_NONE = object()


def in_step(batches: Iterable[Any], ranks: Communicator) -> Iterator[tuple[Any, bool]]:
    """Yield this rank's batches and, while another rank still has some, its last one again, which is then not its own.

    A rank that has none at all is lent the first of another.
    """
    source = iter(batches)
    last: Any = _NONE
    while True:
        batch = next(source, _NONE)
        last = last if batch is _NONE else batch
        everyone = ranks.allgather([batch is not _NONE, last is not _NONE])
        if not any(more for more, _ in everyone):
            return
        if not all(some for _, some in everyone):
            lender = [some for _, some in everyone].index(True)
            lent = ranks.allgather(last if ranks.rank == lender else None)[lender]
            last = lent if last is _NONE else last
        yield last, batch is not _NONE
