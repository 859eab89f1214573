"""Samplers that repeat, shard, skip and shuffle reproducibly, for loaders that are built by hand.

det does all of this itself for its own `DataLoader` and for torch's. Combine samplers in this
order: shuffle, batch, repeat, shard, skip. det does not shard or skip a loader again that already
has such a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, cast

from torch.utils.data import Sampler

__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
]


def _len(sampler: Iterable[Any]) -> int:
    return len(cast(Sized, sampler))


class RepeatSampler(Sampler[Any]):
    """Yields the samples of another sampler over and over. Its length is that of one pass."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return _len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            empty = True
            for item in self.sampler:
                empty = False
                yield item
            if empty:
                return


class DistributedSampler(Sampler[Any]):
    """Yields every item whose position modulo `num_workers` is `rank`.

    If it shards a repeated sampler whose length is not a multiple of `num_workers`, each pass gives
    a rank other items. Raises ValueError for a rank that is not in `range(num_workers)`.
    """

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}; give the number of ranks, 1 or more")
        if not 0 <= rank < num_workers:
            raise ValueError(
                f"rank is {rank}; with num_workers={num_workers} it must be from 0 to"
                f" {num_workers - 1}"
            )
        self.sampler = sampler
        self.num_workers = num_workers
        self.rank = rank

    def __len__(self) -> int:
        whole, rest = divmod(_len(self.sampler), self.num_workers)
        return whole + (rest > self.rank)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.rank, None, self.num_workers)


class SkipSampler(Sampler[Any]):
    """Draws and drops the first `skip` items in each iteration.

    Its length is that of the whole sampler.
    """

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        if skip < 0:
            raise ValueError(f"skip is {skip}; give 0 or more")
        self.sampler = sampler
        self.skip = skip
        self._length = _len(sampler)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.skip, None)


class ReproducibleShuffleSampler(Sampler[Any]):
    """Shuffles the items of another sampler with its own generator.

    Every iteration advances the generator.
    """

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        import numpy as np

        self.sampler = sampler
        self._rng = np.random.RandomState(seed)

    def __len__(self) -> int:
        return _len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        items = list(self.sampler)
        self._rng.shuffle(items)
        return iter(items)


class RepeatBatchSampler(RepeatSampler):
    """Yields the batches of a batch sampler over and over. Its length is that of one pass."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        super().__init__(batch_sampler)


class DistributedBatchSampler(DistributedSampler):
    """Yields every batch whose position modulo `num_workers` is `rank`."""

    def __init__(self, batch_sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, num_workers, rank)


class SkipBatchSampler(SkipSampler):
    """Draws and drops the first `skip` batches in each iteration.

    Its length is that of the whole sampler.
    """

    def __init__(self, batch_sampler: Iterable[Any], skip: int) -> None:
        super().__init__(batch_sampler, skip)


class ReproducibleShuffleBatchSampler(ReproducibleShuffleSampler):
    """Shuffles the batches of a batch sampler with its own generator.

    Every iteration advances the generator.
    """

    def __init__(self, batch_sampler: Iterable[Any], seed: int) -> None:
        super().__init__(batch_sampler, seed)
