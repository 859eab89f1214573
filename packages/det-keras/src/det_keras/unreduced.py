"""Variables that differ between ranks although gradients are reduced.

BatchNorm's statistics are such variables. They are passed as arrays by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from det_core import Communicator

Arrays = Mapping[str, Any]


class UnreducedVariables:
    """Synchronizes and desynchronizes variables that each rank changes by its own data.

    While the ranks validate or save, all have the means. They train on with their own values, so
    that training does not depend on when they validate or save.

    `read` returns the values of all variables on this rank, by names that are equal on all ranks.
    `write` sets some of them.
    """

    def __init__(
        self, read: Callable[[], Arrays], write: Callable[[Arrays], None], distributed: Communicator
    ) -> None:
        self._read, self._write, self._distributed = read, write, distributed
        self._own: dict[str, Any] = {}

    def synchronize_variables(self) -> None:
        """Give every rank the means of the variables that differ between ranks.

        Every rank must call it.
        """
        mine = self._read()
        means = means_of_ranks(mine, self._distributed)
        self._own = {name: mine[name] for name in means} | self._own
        if means:
            self._write(means)

    def desynchronize(self) -> None:
        """Restore this rank's own values before it trains on."""
        if self._own:
            self._write(self._own)
            self._own = {}

    def reset(self) -> None:
        """Forget this rank's own values, and keep the current ones."""
        self._own = {}

    def state(self) -> list[Arrays]:
        """Return each rank's own values. Every rank must call it."""
        return self._distributed.allgather(self._own) if self._distributed.size > 1 else []

    def restore(self, ranks: Sequence[Arrays]) -> None:
        """Restore the result of `state` if the number of ranks is the same.

        With another number, the ranks keep the means, which the saved weights hold.
        """
        if len(ranks) == self._distributed.size and ranks[self._distributed.rank]:
            self._write(ranks[self._distributed.rank])


def means_of_ranks(mine: Arrays, distributed: Communicator) -> dict[str, Any]:
    """Return the means over the ranks of the arrays that differ between them.

    An array that does not hold floating-point numbers is not averaged: the chief's is returned.
    Arrays that are equal on all ranks are left out. Every rank must call this.
    """
    checksums = distributed.allgather({name: checksum([array]) for name, array in mine.items()})
    differ = [name for name in mine if len({each[name] for each in checksums}) > 1]
    ranks = distributed.allgather({name: mine[name] for name in differ}) if differ else []
    return {name: _mean([each[name] for each in ranks]) for name in differ}


def checksum(arrays: Iterable[Any]) -> str:
    """Return a checksum of the bytes of arrays."""
    found = hashlib.blake2b()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _mean(arrays: Sequence[Any]) -> Any:
    dtype = arrays[0].dtype
    if dtype.kind != "f" and dtype.name != "bfloat16":
        return arrays[0]
    return np.mean([np.asarray(array, dtype=np.float64) for array in arrays], axis=0).astype(dtype)
