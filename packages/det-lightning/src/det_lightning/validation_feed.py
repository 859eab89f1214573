"""The validation batches of one rank, as many on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from det_core import Communicator
from det_torch.data import ValidationBatches, validation_batches


class ValidationFeed:
    """One loader of validation batches, dealt to the ranks batch by batch, unless they are shares of the ranks already.

    A rank that gets fewer than another reads a batch once more for each, as a collective in a validation step must find every
    rank there; `repeating` says so of the batch that was read last, which must not count. Data that has no length and is no
    share is read whole by every rank: `dealt` says that it is not.
    """

    def __init__(self, loader: Any, distributed: Communicator, seed: int) -> None:
        whole = validation_batches(loader, rank=0, size=1, seed=seed)
        self.loader, self.repeating = loader, False
        self._length, self.dealt = _length(whole), whole.sharded
        self.advice: str | None = None
        self._share: ValidationBatches = whole
        self._other: ValidationBatches | list[Any] = whole
        if distributed.size > 1 and self._length is not None and not whole.sharded:
            self.dealt = True
            self._share = validation_batches(loader, rank=distributed.rank, size=distributed.size, seed=seed)
            self.advice = self._share.advice
            self._other = validation_batches(loader, rank=0, size=self._length, seed=seed)
            self._length = -(-self._length // distributed.size)
        elif distributed.size > 1 and whole.sharded:
            lengths = distributed.allgather(self._length)
            self._length = None if None in lengths else max(lengths)
            if 0 in lengths:  # a rank without a batch gets another's
                batches = distributed.allgather(next(iter(whole), None) if self._length else None)
                self._other = [batch for batch in batches if batch is not None][:1]

    def __len__(self) -> int:
        """Return the number of this rank's batches. Raises TypeError where that is unknown."""
        if self._length is None:
            raise TypeError("the validation data has no length")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        given, self.repeating = 0, False
        for batch in self._share:
            given += 1
            yield batch
        for _ in range(given, self._length or 0):
            self.repeating = True
            yield next(iter(self._other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def close(self) -> None:
        """End worker processes."""
        for each in (self._share, self._other):
            if isinstance(each, ValidationBatches):
                each.close()


def _length(batches: ValidationBatches) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None
