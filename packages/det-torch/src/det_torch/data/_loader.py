"""det's data loader. det builds its iterators for each rank's share, from the position where a run
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from ..samplers import DistributedBatchSampler, RepeatBatchSampler, SkipBatchSampler


class DataLoader:
    """Takes the arguments of torch's DataLoader, with the same meanings.

    det repeats, shards and skips it without reading data. Outside det it is iterated like torch's,
    once for each epoch. Raises ValueError for options that exclude one another.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        iterable = isinstance(dataset, IterableDataset)
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        _check_order(iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset = dataset
        self.batch_size = batch_size if batch_sampler is None else None
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        if not iterable and batch_sampler is None:
            # torch refuses to shuffle an empty dataset. An empty loader raises an error only when
            # it is used.
            self.sampler = self._default_sampler(shuffle, generator) if sampler is None else sampler
            self.batch_sampler = BatchSampler(self.sampler, batch_size or 1, drop_last)
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }

    def _default_sampler(self, shuffle: bool, generator: torch.Generator | None) -> Iterable[Any]:
        if shuffle and len(self.dataset):
            return RandomSampler(self.dataset, generator=generator)
        return SequentialSampler(self.dataset)

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> TorchDataLoader[Any]:
        """Return a torch DataLoader that is repeated, then sharded by batches, then without the
        first `skip` batches.

        Raises ValueError if the rank is not in `range(num_replicas)`. Raises it also if an
        IterableDataset shall be repeated, sharded or skipped, as it has no indices.
        """
        if self.batch_sampler is not None:
            sampler = _adapted(self.batch_sampler, repeat, skip, num_replicas, rank)
            return self._declared(
                TorchDataLoader(self.dataset, batch_sampler=sampler, **self._options)
            )
        if repeat or skip or num_replicas > 1:
            raise ValueError(
                f"a {type(self.dataset).__name__} is read in its own order and cannot be repeated,"
                " sharded or skipped by index; call get_data_loader() without arguments"
            )
        return self._declared(
            TorchDataLoader(
                self.dataset, self.batch_size, drop_last=self.drop_last, **self._options
            )
        )

    def _declared(self, loader: TorchDataLoader[Any]) -> TorchDataLoader[Any]:
        """Copy this loader's `det_sharded` to a torch loader."""
        if (sharded := getattr(self, "det_sharded", None)) is not None:
            loader.det_sharded = sharded
        return loader

    @cached_property
    def _plain(self) -> TorchDataLoader[Any]:
        return self.get_data_loader()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)


def _adapted(
    batches: Iterable[Any], repeat: bool, skip: int, num_replicas: int, rank: int
) -> Iterable[Any]:
    if repeat:
        batches = RepeatBatchSampler(batches)
    if num_replicas != 1 or rank:
        batches = DistributedBatchSampler(batches, num_replicas, rank)
    return SkipBatchSampler(batches, skip) if skip else batches


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> None:
    if num_workers < 0:
        raise ValueError(f"num_workers is {num_workers}; give 0 or more")
    if timeout < 0:
        raise ValueError(f"timeout is {timeout}; give 0 (none) or more seconds")
    if prefetch_factor is not None and num_workers == 0:
        raise ValueError(
            f"prefetch_factor is {prefetch_factor} but num_workers is 0; leave it out, or give"
            " workers"
        )
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor is {prefetch_factor}; give 1 or more")
    if persistent_workers and num_workers == 0:
        raise ValueError(
            "persistent_workers is set but num_workers is 0; leave it out, or give workers"
        )


def _check_order(
    iterable: bool,
    batch_size: int | None,
    shuffle: bool,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
) -> None:
    if iterable and (shuffle or sampler is not None or batch_sampler is not None):
        raise ValueError(
            "an IterableDataset has its own order; leave out shuffle, sampler and batch_sampler"
        )
    if batch_sampler is not None and (
        batch_size != 1 or shuffle or sampler is not None or drop_last
    ):
        raise ValueError(
            "batch_sampler makes the batches; leave out batch_size, shuffle, sampler and drop_last"
        )
    if sampler is not None and shuffle:
        raise ValueError("sampler and shuffle both decide the order; leave one out")
    if batch_size is None and batch_sampler is None and not iterable:
        raise ValueError("batch_size is None and there is no batch_sampler; give one of them")
    if batch_size is None and drop_last:
        raise ValueError("drop_last needs batches, but batch_size is None; leave it out")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; give 1 or more")
