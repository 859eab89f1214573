"""The validation data of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from det_core.errors import TrialError

from ._generators import find_generators, read_generators, write_generators
from ._loader import DataLoader
from ._order import Order, SamplerOrder, empty
from ._rng import PrivateRng, derive
from ._sharding import is_sharded, read_by_all, samplers, without_padding
from ._torch import Indices, again, is_indexed, is_plain, length_of, order_of, reading, shut_down


class ValidationBatches:
    """Yields the batches of one rank: those whose position modulo `size` is `rank`.

    It can be iterated again, with the same results. For that, the generators that a data set keeps
    for itself are set to their first states, and put back at the end.

    Data that is sharded already is not dealt. Records that torch's DistributedSampler repeats to
    give all ranks equally many are left out, so that each record counts once. A shuffled loader
    gives the same order every time.

    `advice` is a sentence for the user if every rank reads all of the data. Raises TrialError if
    there is no batch for any rank.
    """

    def __init__(self, loader: Any, rank: int, size: int, seed: int) -> None:
        loader = loader.get_data_loader() if isinstance(loader, DataLoader) else loader
        self.sharded = is_sharded(loader)
        self._first, self._step = (0, 1) if self.sharded else (rank, size)
        self.advice = None if is_indexed(loader) else read_by_all(loader, size, "validation")
        # The seed differs from the one of training.
        self._seed = derive(seed, -2)
        self._iterator: Any = None
        self.loader = self._indexed(loader, rank, size) if is_indexed(loader) else loader
        self._is_indexed = is_indexed(loader)
        # Worker processes have copies, and start with the first states.
        own = isinstance(loader, TorchDataLoader) and not loader.num_workers
        self._generators = find_generators(loader) if own else {}
        self._first_states = read_generators(self._generators)

    def _indexed(self, loader: TorchDataLoader[Any], rank: int, size: int) -> TorchDataLoader[Any]:
        order: Order = order_of(loader, self._seed, "validation")
        if (share := without_padding(loader)) is not None:
            order = SamplerOrder(share, samplers(loader), self._seed, length_of(share))
        length = None if order.length is None else len(range(self._first, order.length, self._step))
        numbers = (rank, size) if loader.num_workers else None
        indices = Indices(lambda: order.once(self._first, self._step), numbers, length)
        return reading(loader, indices, self._seed, persistent=loader.persistent_workers)

    def __iter__(self) -> Iterator[Any]:
        if not self._is_indexed:
            batches = self._reread()
        else:
            self._iterator = batches = iter(self.loader)
        return self._from_first_states(batches) if self._generators else batches

    def _from_first_states(self, batches: Iterator[Any]) -> Iterator[Any]:
        states = read_generators(self._generators)
        write_generators(self._generators, self._first_states)
        try:
            yield from batches
        finally:
            write_generators(self._generators, states)

    def _reread(self) -> Iterator[Any]:
        with PrivateRng(derive(self._seed, 0)):
            self._iterator = iterator = iter(
                again(self.loader, self._seed) if is_plain(self.loader) else self.loader
            )
            first = list(islice(iterator, 1))
        if not first and not self.sharded:
            raise TrialError(
                empty(f"this {type(self.loader).__name__} yields nothing", "validation")
            )
        yield from islice(chain(first, iterator), self._first, None, self._step)

    def __len__(self) -> int:
        """Return the number of this rank's batches. Raises TypeError if that is unknown."""
        length = length_of(self.loader)
        if length is None:
            raise TypeError(f"the validation data ({type(self.loader).__name__}) has no length")
        return length if self._is_indexed else len(range(self._first, length, self._step))

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def close(self) -> None:
        """End worker processes that persist between validations, and those of an interrupted
        validation.
        """
        shut_down(self._iterator, self.loader)
        self._iterator = None


def validation_batches(loader: Any, *, rank: int, size: int, seed: int = 0) -> ValidationBatches:
    """Return one rank's share of the validation data: batch i belongs to rank i % size.

    Workers are seeded for every batch, as in training. Without workers, a dataset draws from the
    global generators. The caller must save and restore these around a validation. Raises TrialError
    if the data is empty.
    """
    return ValidationBatches(loader, rank, size, seed)
