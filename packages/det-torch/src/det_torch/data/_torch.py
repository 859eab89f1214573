"""Takes torch's data loaders apart and rebuilds them with another order of indices."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any, TypeGuard

import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError

from ._order import Order, PositionalOrder, SamplerOrder, empty, shuffled
from ._rng import derive, seed_everything
from ._sharding import samplers

_ITERATION = ("__iter__", "_get_iterator")


def is_plain(loader: Any) -> TypeGuard[TorchDataLoader[Any]]:
    """Return whether a loader is torch's own, or a subclass that iterates like torch's."""
    if not isinstance(loader, TorchDataLoader):
        return False
    return all(
        getattr(type(loader), name, None) is getattr(TorchDataLoader, name, None)
        for name in _ITERATION
    )


def is_indexed(loader: Any) -> TypeGuard[TorchDataLoader[Any]]:
    """Return whether a loader is a plain one of a map-style dataset."""
    return is_plain(loader) and not isinstance(loader.dataset, IterableDataset)


def order_of(loader: TorchDataLoader[Any], seed: int, split: str = "training") -> Order:
    """Return the order in which a loader reads its map-style dataset.

    Raises TrialError if it reads nothing.
    """
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
    return SamplerOrder(
        loader.sampler if batches is None else batches, samplers(loader), seed, length
    )


def _nothing(loader: TorchDataLoader[Any]) -> str:
    batches = loader.batch_sampler
    if isinstance(batches, BatchSampler) and batches.drop_last:
        records = len(loader.dataset)  # type: ignore[arg-type]
        return (
            f"{records} records do not fill a batch of {batches.batch_size}, and drop_last is set"
        )
    return f"its {type(loader.dataset).__name__} holds no records"


def length_of(loader: Any) -> int | None:
    """Return the number of batches in an epoch of a loader, or None if it has no length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


class Indices:
    """A stream of index lists for torch's loaders.

    It is an iterable that can be started again and has a length if it ends.

    `numbers` is a first number and a step. With it, each index list comes with the number of its
    batch, for a SeededDataset.
    """

    def __init__(
        self,
        begin: Callable[[], Iterator[Any]],
        numbers: tuple[int, int] | None,
        length: int | None = None,
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
    """Return a copy of a loader that reads its dataset in the order of `indices`.

    Index lists must be numbered if the loader has workers. Neither the copy nor its iterators draw
    from the global generators.
    """
    kind = "sampler" if loader.batch_sampler is None else "batch_sampler"
    options: dict[str, Any] = {
        kind: indices,
        "persistent_workers": persistent,
        **_common(loader, seed),
    }
    if kind == "sampler":
        options["batch_size"] = None
    dataset: Any = loader.dataset
    if loader.num_workers:
        dataset = SeededDataset(dataset, seed)
    return TorchDataLoader(dataset, **options)


def again(loader: TorchDataLoader[Any], seed: int) -> TorchDataLoader[Any]:
    """Return a copy of a loader of an iterable dataset. `seed` seeds its workers."""
    batches = loader.batch_size
    return TorchDataLoader(
        loader.dataset, batches, drop_last=loader.drop_last, **_common(loader, seed)
    )


def _common(loader: TorchDataLoader[Any], seed: int) -> dict[str, Any]:
    """Return a loader's options that do not concern its order.

    A separate generator gives the workers' seeds.
    """
    names = [
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
    ]
    names += ["prefetch_factor"] if loader.num_workers else []
    names += ["in_order"] if hasattr(loader, "in_order") else []
    options = {name: getattr(loader, name) for name in names}
    if loader.num_workers:
        options["worker_init_fn"] = WorkerInit(loader.worker_init_fn)
    if getattr(loader, "pin_memory_device", ""):
        options["pin_memory_device"] = loader.pin_memory_device
    return options | {"generator": torch.Generator().manual_seed(derive(seed, -1))}


def shut_down(iterator: Any, loader: Any = None) -> None:
    """End the worker processes and threads of a torch loader's iterator. A generator is closed."""
    end = getattr(iterator, "_shutdown_workers", None)
    if callable(end):
        end()
    elif isinstance(iterator, Generator):
        iterator.close()
    if iterator is not None and getattr(loader, "_iterator", None) is iterator:
        # Otherwise a loader with persistent workers would continue with dead ones.
        loader._iterator = None


class SeededDataset(Dataset[Any]):
    """A map-style dataset whose index is `(number of the batch, indices)`.

    The number seeds the process.

    The collate function runs right after it in the same process, so that its randomness is seeded
    too.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.inner = dataset
        self._seed = seed

    def __getitems__(self, numbered: tuple[int, Any]) -> Any:
        number, indices = numbered
        seed_everything(derive(self._seed, number))
        many = getattr(self.inner, "__getitems__", None)
        return many(indices) if many else [self.inner[index] for index in indices]

    def __getitem__(self, numbered: tuple[int, Any]) -> Any:
        number, index = numbered
        seed_everything(derive(self._seed, number))
        return self.inner[index]

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        # The attribute is missing while the object is being unpickled.
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


LINGER_SECONDS = 10


class WorkerInit:
    """Prepares a loader's worker process, then calls the user's own `worker_init_fn`.

    `get_worker_info().dataset` returns the user's dataset and not the wrapper. Ctrl-C and SIGTERM
    reach the whole process group, but the training process needs more batches until it has saved.
    The worker ignores Ctrl-C, and ends `LINGER_SECONDS` after SIGTERM.
    """

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _linger)
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SeededDataset):
            # torch freezes the object and has no other way to set a worker's dataset.
            object.__setattr__(info, "dataset", info.dataset.inner)
        if self._then is not None:
            self._then(worker)


def _linger(number: int, frame: object) -> None:
    # Exit with status 0. For any other status, or a death by signal, torch raises an error in the
    # training process at an arbitrary point.
    signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.alarm(signal.alarm(0) or LINGER_SECONDS)
