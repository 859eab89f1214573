"""Torch's data loaders, taken apart and put together again around another order of indices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any, TypeGuard

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError

from ._order import Order, PositionalOrder, SamplerOrder, empty, shuffled
from ._rng import derive
from ._seeded import SeededDataset, WorkerInit
from ._sharding import samplers

_ITERATION = ("__iter__", "_get_iterator")


def is_plain(loader: Any) -> TypeGuard[TorchDataLoader[Any]]:
    """Tell whether a loader is torch's own, or a subclass that iterates as torch's does."""
    if not isinstance(loader, TorchDataLoader):
        return False
    return all(getattr(type(loader), name, None) is getattr(TorchDataLoader, name, None) for name in _ITERATION)


def is_indexed(loader: Any) -> TypeGuard[TorchDataLoader[Any]]:
    """Tell whether a loader is a plain one of a map-style dataset."""
    return is_plain(loader) and not isinstance(loader.dataset, IterableDataset)


def order_of(loader: TorchDataLoader[Any], seed: int, split: str = "training") -> Order:
    """Return the order in which a loader of a map-style dataset reads it. Raises TrialError where it reads nothing."""
    batches, length = loader.batch_sampler, length_of(loader)
    if length == 0:
        raise TrialError(empty(_nothing(loader), split))
    size, drop = None, False
    sampler: Any = loader.sampler
    if type(batches) is BatchSampler:
        sampler, size, drop = batches.sampler, batches.batch_size, batches.drop_last
    elif batches is not None:
        sampler = batches
    if type(sampler) is RandomSampler:
        return PositionalOrder(shuffled(sampler, seed), len(sampler), size, drop)
    if type(sampler) is SequentialSampler:
        records = range(len(sampler))
        return PositionalOrder(lambda _: records, len(records), size, drop)
    return SamplerOrder(loader.sampler if batches is None else batches, samplers(loader), seed, length)


def _nothing(loader: TorchDataLoader[Any]) -> str:
    batches = loader.batch_sampler
    if isinstance(batches, BatchSampler) and batches.drop_last:
        return f"{len(loader.dataset)} records do not fill a batch of {batches.batch_size}, and drop_last is set"  # type: ignore[arg-type]
    return f"its {type(loader.dataset).__name__} holds no records"


def length_of(loader: Any) -> int | None:
    """Return the number of batches in an epoch of a loader, or None where it has no length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


class Indices:
    """A stream of index lists as torch's loaders want it: an iterable that may be begun anew, with a length if it ends.

    `numbers`, a first one and a step, puts before every index list the number of its batch, for a SeededDataset.
    """

    def __init__(
        self, begin: Callable[[], Iterator[Any]], numbers: tuple[int, int] | None, length: int | None = None
    ) -> None:
        self._begin = begin
        self._numbers = numbers
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        if self._numbers is None:
            return self._begin()
        return zip(count(*self._numbers), self._begin(), strict=False)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("an endless stream has no length")
        return self._length


def reading(
    loader: TorchDataLoader[Any], indices: Indices, seed: int, *, persistent: bool = False
) -> TorchDataLoader[Any]:
    """Return a loader like another one that reads its dataset in the order of `indices`.

    Index lists must be numbered where the loader has workers. Neither this nor its iterators draw from the global RNGs.
    """
    kind = "sampler" if loader.batch_sampler is None else "batch_sampler"
    options: dict[str, Any] = {kind: indices, "persistent_workers": persistent, **_common(loader, seed)}
    if kind == "sampler":
        options["batch_size"] = None
    dataset: Any = loader.dataset
    if loader.num_workers:
        dataset = SeededDataset(dataset, seed)
    return TorchDataLoader(dataset, **options)


def again(loader: TorchDataLoader[Any], seed: int) -> TorchDataLoader[Any]:
    """Return a loader like another one of an iterable dataset, whose workers are seeded by `seed`."""
    batches = loader.batch_size
    return TorchDataLoader(loader.dataset, batches, drop_last=loader.drop_last, **_common(loader, seed))


def _common(loader: TorchDataLoader[Any], seed: int) -> dict[str, Any]:
    """Return the options of a loader that do not concern its order, with a generator of its own for the workers' seeds."""
    names = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"]
    names += ["prefetch_factor"] if loader.num_workers else []
    names += ["in_order"] if hasattr(loader, "in_order") else []
    options = {name: getattr(loader, name) for name in names}
    if loader.num_workers:
        options["worker_init_fn"] = WorkerInit(loader.worker_init_fn)
    if getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    return options | {"generator": torch.Generator().manual_seed(derive(seed, -1))}


def shut_down(iterator: Any, loader: Any = None) -> None:
    """End the worker processes and threads of a torch loader's iterator; a generator is closed."""
    end = getattr(iterator, "_shutdown_workers", None)
    if callable(end):
        end()
    elif isinstance(iterator, Generator):
        iterator.close()
    if iterator is not None and getattr(loader, "_iterator", None) is iterator:
        loader._iterator = None  # or a loader with persistent workers would go on with dead ones
