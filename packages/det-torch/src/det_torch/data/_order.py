"""The order of a map-style dataset's batches: endless streams of index lists that start at any
position.

Positions count in the global stream. It holds all epochs in sequence, before batches are dealt to
ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import RandomSampler

from det_core.errors import TrialError

from ._rng import PrivateRng, derive

# Batches drawn from a user's sampler at a time. Each time costs an exchange of the global
# generators.
_AHEAD = 64


class Order(Protocol):
    """The order of a dataset."""

    @property
    def length(self) -> int | None:
        """Batches in an epoch, or None if that is unknown."""

    def endless(self, start: int, step: int) -> Iterator[Any]:
        """Yield the index lists at positions `start`, `start + step`, … of the repeated stream."""

    def once(self, start: int, step: int) -> Iterator[Any]:
        """Yield the index lists at these positions of the first epoch only."""


class PositionalOrder:
    """The order of torch's own samplers.

    It depends only on the epoch's number, so that any position is reached at once.

    `records(epoch)` returns the indices of one epoch, `count` of them. With `batch_size` None they
    are yielded one by one.
    """

    length: int

    def __init__(
        self, records: Callable[[int], Any], count: int, batch_size: int | None, drop_last: bool
    ) -> None:
        self._records = records
        self._batch_size = batch_size
        size = batch_size or 1
        self.length = count // size if drop_last else -(-count // size)

    def endless(self, start: int, step: int) -> Iterator[Any]:
        epoch, offset = divmod(start, self.length)
        while True:
            yield from self._epoch(epoch, offset, step)
            offset += -(-(self.length - offset) // step) * step
            epoch, offset = epoch + offset // self.length, offset % self.length

    def once(self, start: int, step: int) -> Iterator[Any]:
        return self._epoch(0, start, step)

    def _epoch(self, epoch: int, start: int, step: int) -> Iterator[Any]:
        records, size = self._records(epoch), self._batch_size
        if size is None:
            for at in range(start, self.length, step):
                yield int(records[at])
            return
        plain: Callable[[Any], list[int]] = (
            list if isinstance(records, range) else type(records).tolist
        )
        for at in range(start * size, self.length * size, step * size):
            yield plain(records[at : at + size])


def shuffled(sampler: RandomSampler, seed: int) -> Callable[[int], Any]:
    """Return a function that gives the indices of an epoch as torch's RandomSampler draws them,
    seeded by (seed, epoch).

    If the user gave the sampler a generator, its initial seed replaces the trial's seed.
    """
    if sampler.generator is not None:
        seed = sampler.generator.initial_seed()

    def records(epoch: int) -> Any:
        n, count = len(sampler.data_source), sampler.num_samples
        generator = torch.Generator().manual_seed(derive(seed, epoch))
        if sampler.replacement:
            return torch.randint(n, (count,), generator=generator).numpy()
        passes = [torch.randperm(n, generator=generator) for _ in range(-(-count // n))]
        return (passes[0] if len(passes) == 1 else torch.cat(passes))[:count].numpy()

    return records


class SamplerOrder:
    """The order of a user's sampler.

    To reach a position, its epochs are drawn again from the first one. No data is read for that.

    The global generators are seeded by (seed, epoch) while it draws. `set_epoch` is called on each
    of `samplers` that has it. At most 64 batches are drawn ahead. If one of `samplers` has
    `det_on_demand`, each batch is drawn only when it is needed.

    `mark` is a checksum of the first indices. It shows that a sampler starts with other indices
    than in an earlier run.
    """

    def __init__(
        self, indices: Iterable[Any], samplers: Sequence[Any], seed: int, length: int | None
    ) -> None:
        self.length = length
        self.mark: int | None = None
        self._indices = indices
        self._samplers = samplers
        self._seed = seed
        self.on_demand = any(getattr(sampler, "det_on_demand", False) for sampler in samplers)

    def endless(self, start: int, step: int) -> Iterator[Any]:
        epoch = position = 0
        while True:
            began = position
            for chunk in self._chunks(epoch):
                if not position:
                    self.mark = zlib.crc32(repr(chunk[0]).encode())
                ahead = start - position if position < start else (start - position) % step
                yield from chunk[ahead::step]
                position += len(chunk)
            if position == began:
                raise TrialError(
                    empty(f"its {type(self._indices).__name__} yields nothing in epoch {epoch}")
                )
            epoch += 1

    def once(self, start: int, step: int) -> Iterator[Any]:
        with PrivateRng(derive(self._seed, 0)):
            # The limit gives one pass, even if the sampler repeats itself.
            indices = list(islice(self._indices, self.length))
        return iter(indices[start::step])

    def _chunks(self, epoch: int) -> Iterator[list[Any]]:
        announce(epoch, *self._samplers)
        rng = PrivateRng(derive(self._seed, epoch))
        with rng:
            indices = iter(self._indices)
        while True:
            with rng:
                chunk = list(islice(indices, 1 if self.on_demand else _AHEAD))
            if not chunk:
                return
            yield chunk


def announce(epoch: int, *objects: Any) -> None:
    """Call `set_epoch` of each object that has it: a loader, its dataset or its samplers."""
    for thing in objects:
        set_epoch = getattr(thing, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def empty(why: str, split: str = "training") -> str:
    """Return the message for a data loader that has no batch."""
    return f"the {split} data loader is empty: {why}; give it at least one batch"
