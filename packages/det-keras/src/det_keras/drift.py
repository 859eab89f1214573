"""What no reduction of gradients keeps equal over the ranks, such as BatchNorm's statistics, as arrays by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from det_core import Communicator

Arrays = Mapping[str, Any]


class Drift:
    """Variables that each rank changes by what it sees: all have their means while one validates or saves, and train on with
    their own, so that training does not depend on when that was.

    `read` returns the values of all of them on this rank, by names that are the same on each; `write` sets some.
    """

    def __init__(self, read: Callable[[], Arrays], write: Callable[[Arrays], None], distributed: Communicator) -> None:
        self._read, self._write, self._distributed = read, write, distributed
        self._own: dict[str, Any] = {}

    def meet(self) -> None:
        """Give every rank the means, of those that differ between them; every rank must call it."""
        mine = self._read()
        means = means_of_ranks(mine, self._distributed)
        self._own = {name: mine[name] for name in means} | self._own
        if means:
            self._write(means)

    def part(self) -> None:
        """Give this rank its own values again, to train on."""
        if self._own:
            self._write(self._own)
            self._own = {}

    def forget(self) -> None:
        """Train on, if at all, with what there is now."""
        self._own = {}

    def state(self) -> list[Arrays]:
        """Return the own values of each rank; every rank must ask."""
        return self._distributed.allgather(self._own) if self._distributed.size > 1 else []

    def restore(self, ranks: Sequence[Arrays]) -> None:
        """Take up what `state` returned, where there are as many ranks; others have the means, which the weights hold."""
        if len(ranks) == self._distributed.size and ranks[self._distributed.rank]:
            self._write(ranks[self._distributed.rank])


def means_of_ranks(mine: Arrays, distributed: Communicator) -> dict[str, Any]:
    """Return the means over the ranks of those arrays that differ between them; of what is no real number, the chief's."""
    checksums = distributed.allgather({name: checksum([array]) for name, array in mine.items()})
    differ = [name for name in mine if len({each[name] for each in checksums}) > 1]
    ranks = distributed.allgather({name: mine[name] for name in differ}) if differ else []
    return {name: _mean([each[name] for each in ranks]) for name in differ}


def checksum(arrays: Iterable[Any]) -> str:
    """Return a checksum of the bits of arrays."""
    found = hashlib.blake2b()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _mean(arrays: Sequence[Any]) -> Any:
    dtype = arrays[0].dtype
    if dtype.kind != "f" and dtype.name != "bfloat16":
        return arrays[0]
    return np.mean([np.asarray(array, dtype=np.float64) for array in arrays], axis=0).astype(dtype)
