"""Keeps the ranks in step over batches, as all ranks take part in each forward pass of a sharded
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from det_core import Communicator

_NONE = object()


def in_step(batches: Iterable[Any], ranks: Communicator) -> Iterator[tuple[Any, bool]]:
    """Yield this rank's batches, each with True.

    While another rank still has batches, yield the last batch again with False. A rank without any
    batch gets the first batch of another rank.
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
