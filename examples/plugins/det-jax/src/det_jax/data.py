"""Arrays in memory, cut into batches whose order depends on the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np

from det_core import TrialError


class ArrayData:
    """Arrays of one length, in a pytree.

    With `shuffle`, the records come in a new order in each epoch.
    """

    def __init__(self, arrays: Any, *, shuffle: bool = False) -> None:
        self.arrays, self.shuffle = jax.tree.map(np.asarray, arrays), shuffle
        lengths = {len(array) for array in jax.tree.leaves(self.arrays)}
        if len(lengths) != 1:
            raise TrialError(
                f"the arrays of the data have the lengths {sorted(lengths)}; give all of them one"
                " length"
            )
        (self.length,) = lengths

    def at(self, records: Any) -> Any:
        """Return the records with these numbers, or of this slice."""
        return jax.tree.map(lambda array: array[records], self.arrays)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The training batches of one rank: its part of each batch of `size` records.

    An incomplete last one is left out.
    """

    data: ArrayData
    size: int
    seed: int
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        if not len(self):
            raise TrialError(
                f"the training data has {self.data.length} records, fewer than global_batch_size,"
                f" which is {self.size}"
            )

    def __len__(self) -> int:
        return self.data.length // self.size

    def after(self, done: int) -> Iterator[Any]:
        """Yield the batches behind the first `done`, without end."""
        first, skip = divmod(done, len(self))
        part = self.size // self.ranks
        for epoch in count(first):
            order = self._order(epoch)
            for batch in range(skip if epoch == first else 0, len(self)):
                begin = batch * self.size + self.rank * part
                yield self.data.at(order[begin : begin + part])

    def _order(self, epoch: int) -> np.ndarray[Any, Any]:
        if not self.data.shuffle:
            return np.arange(self.data.length)
        return np.random.default_rng([self.seed, epoch]).permutation(self.data.length)
