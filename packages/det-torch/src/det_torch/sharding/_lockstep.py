"""Batches that all ranks go through together, as each forward pass of a sharded model needs all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from det_core import Communicator, TrialError


def in_step(batches: Iterable[Any], ranks: Communicator) -> Iterator[tuple[Any, bool]]:
    """Yield this rank's batches, and the last of them again while another rank still has some, which is then not its own."""
    source = iter(batches)
    last: Any = None
    had = False
    while True:
        there = True
        try:
            last = next(source)
            had = True
        except StopIteration:
            there = False
        everyone = ranks.allgather([there, had])
        if not any(more for more, _ in everyone):
            return
        if not all(some for _, some in everyone):
            raise TrialError(
                "a rank has no validation batch, and a sharded model needs all ranks for each forward pass; make the batches "
                "smaller, so that there is at least one for each rank"
            )
        yield last, there
