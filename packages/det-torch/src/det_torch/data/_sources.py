"""Sources of training batches, one class for each way to reach a position."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Any, ClassVar, final

from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError

from ._attributes import (
    Attributes,
    changed_attributes,
    find_datasets,
    read_attributes,
    restore_attributes,
)
from ._generators import find_generators, read_generators, write_generators
from ._order import SamplerOrder, empty
from ._sharding import is_sharded, is_skipped
from ._torch import Indices, length_of, order_of, reading, shut_down


def rank_batches(loader: Any, step: int) -> int | None:
    """Return the batches in an epoch of one rank, which gets every `step`-th batch of the loader.

    None if the data has no length.
    """
    length = length_of(loader)
    return None if length is None else -(-length // step)


class Source(ABC):
    """Yields the training batches of one rank.

    `step` is the distance in the stream between two batches of this rank.
    """

    # The kind of its state in a checkpoint.
    kind: ClassVar[str] = "index"
    warning: str | None = None
    advice: str | None = None
    # The most batches of the stream in an epoch, for data without a length.
    limit: int | None = None

    def __init__(self, loader: Any, rank: int, size: int) -> None:
        self.loader = loader
        self.sharded = is_sharded(loader)
        self.first, self.step = (0, 1) if self.sharded else (rank, size)

    @property
    def batches_per_epoch(self) -> int | None:
        return rank_batches(self.loader, self.step)

    @abstractmethod
    def batches(self, done: int) -> Iterator[Any]:
        """Return the stream after the first `done` batches of this rank.

        It replaces a stream that is open.
        """

    def epochs(self, done: int, per_epoch: int) -> Iterator[Any]:
        """Return the same stream.

        It reads nothing of an epoch before the first batch of that epoch is requested.
        """
        return self.batches(done)

    def state(self, done: int) -> dict[str, Any] | None:
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def close(self) -> None:
        """End open iterators and their processes."""


@final
class IndexedSource(Source):
    """Reads a map-style dataset. It reaches a position in the indices, without reading data."""

    def __init__(self, loader: TorchDataLoader[Any], seed: int, rank: int, size: int) -> None:
        super().__init__(loader, rank, size)
        self._seed, self._rank, self._size = seed, rank, size
        self._skipped = is_skipped(loader)
        self._order = order_of(loader, seed)
        self._expected: int | None = None
        self._iterator: Any = None
        self._epochs: Generator[Any] | None = None
        self._generators = find_generators(loader)
        self._drawn: Mapping[str, Any] = {}
        # Persistent workers keep the datasets as they were when the workers began.
        self._datasets = {} if loader.persistent_workers else find_datasets(loader.dataset)
        self._first_attributes = read_attributes(self._datasets)
        self._attributes_of_workers: Attributes = {}
        if self._generators and loader.num_workers:
            # Each worker process has a copy, which cannot be read.
            self.warning = (
                "the training data keeps a random generator of its own"
                f" ({next(iter(self._generators))}), with which each worker process starts again"
                " after a restart, so that it draws other numbers; draw from the global generators"
                " of PyTorch, NumPy or Python, which are seeded for each batch"
            )
        if not getattr(loader, "in_order", True):
            self.warning = (
                "the training data loader has in_order=False: its batches come in another order in"
                " every run"
            )

    def batches(self, done: int) -> Iterator[Any]:
        self.close()
        indices = self._order.endless(
            0 if self._skipped else done * self.step + self.first, self.step
        )
        # A user's sampler replays its earlier epochs here.
        indices = chain([next(indices)], indices)
        self.warning = self._inexact(done) or self.warning
        return self._open(indices, done)

    def epochs(self, done: int, per_epoch: int) -> Iterator[Any]:
        self.close()
        self._epochs = self._generate(done, per_epoch)
        return self._epochs

    def _generate(self, done: int, per_epoch: int) -> Generator[Any]:
        indices = self._order.endless(
            0 if self._skipped else done * self.step + self.first, self.step
        )
        indices = chain([next(indices)], indices)
        if warning := self._inexact(done):
            self.warning = warning
            warnings.warn(warning, stacklevel=1)
        if not self.loader.num_workers or self.loader.persistent_workers:
            yield from self._open(indices, done)
        # Each epoch starts new workers, which get the data set as it is now.
        while True:
            count = per_epoch - done % per_epoch
            yield from self._open(islice(indices, count), done)
            shut_down(self._iterator)
            done += count

    def _open(self, indices: Iterator[Any], done: int) -> Iterator[Any]:
        # Batches are numbered over all ranks, so that no two of them get the same seed.
        numbers = (done * self._size + self._rank, self._size) if self.loader.num_workers else None
        # A sampler that shares a generator has drawn its earlier epochs again by now.
        write_generators(self._generators, self._drawn)
        self._drawn = {}
        if self.loader.num_workers:
            self._attributes_of_workers = read_attributes(self._datasets)
        self._iterator = iter(reading(self.loader, Indices(lambda: indices, numbers), self._seed))
        return self._iterator  # type: ignore[no-any-return]

    def state(self, done: int) -> dict[str, Any] | None:
        state: dict[str, Any] = {}
        if isinstance(self._order, SamplerOrder) and not self._skipped:
            state["mark"] = self._order.mark
        if not self.loader.num_workers:
            state["generators"] = read_generators(self._generators)
        workers = self.loader.num_workers
        now = self._attributes_of_workers if workers else read_attributes(self._datasets)
        state["attributes"] = changed_attributes(now, self._first_attributes)
        state = {key: value for key, value in state.items() if value not in (None, {})}
        return {"kind": self.kind, **state} if state else None

    def restore(self, state: Mapping[str, Any]) -> None:
        self._expected = state.get("mark")
        self._drawn = {} if self.loader.num_workers else state.get("generators", {})
        restore_attributes(self._datasets, state.get("attributes", {}), self._first_attributes)

    def _inexact(self, done: int) -> str | None:
        """Return a sentence that says why the indices after `done` batches differ from the earlier
        run's. None if they do not.
        """
        if not isinstance(self._order, SamplerOrder):
            return None
        if self._order.on_demand and done and not self._skipped:
            return (
                "the sampler of the training data draws on demand: after a restart its indices are"
                " drawn again from its first epoch on, without what it followed then, so that some"
                " records are repeated and some are missed"
            )
        if self._expected in (None, self._order.mark):
            return None
        return (
            "the sampler of the training data began with other indices than in the run before, so"
            " that some records are repeated and some are missed; seed the generator that it keeps"
        )

    def close(self) -> None:
        if self._epochs is not None:
            self._epochs.close()
            self._epochs = None
        if self._iterator is not None:
            shut_down(self._iterator)
            self._iterator = None


@final
class SequenceSource(Source):
    """Reads a list of batches."""

    def __init__(self, loader: Sequence[Any], rank: int, size: int) -> None:
        super().__init__(loader, rank, size)
        if not len(loader):
            raise TrialError(empty(f"it is a {type(loader).__name__} of length 0"))

    def batches(self, done: int) -> Iterator[Any]:
        length = len(self.loader)
        return (self.loader[at % length] for at in count(done * self.step + self.first, self.step))
