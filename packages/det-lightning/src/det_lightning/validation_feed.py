"""The validation batches of one rank, as many on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from det_core import Communicator
from det_torch.data import ValidationBatches, validation_batches


class ValidationFeed:
    """One loader of validation batches, dealt to the ranks batch by batch.

    A rank that gets one batch fewer reads the first batch of all once more, as a collective in a validation step must find
    every rank there. Data that has no length is read whole by every rank.
    """

    def __init__(self, loader: Any, distributed: Communicator, seed: int) -> None:
        whole = validation_batches(loader, rank=0, size=1, seed=seed)
        self.loader = loader
        self._length = _length(whole)
        self._share, self._first = whole, whole
        if distributed.size > 1 and self._length is not None:
            self._share = validation_batches(loader, rank=distributed.rank, size=distributed.size, seed=seed)
            self._first = validation_batches(loader, rank=0, size=self._length, seed=seed)
            self._length = -(-self._length // distributed.size)

    def __len__(self) -> int:
        """Return the number of this rank's batches. Raises TypeError where that is unknown."""
        if self._length is None:
            raise TypeError("the validation data has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        given = 0
        for batch in self._share:
            given += 1
            yield batch
        if self._length is not None and given < self._length and self._first is not self._share:
            yield from islice(self._first, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def close(self) -> None:
        """End worker processes."""
        self._share.close()
        self._first.close()


def _length(batches: ValidationBatches) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None
