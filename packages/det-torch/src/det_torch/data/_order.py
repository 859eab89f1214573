"""In which order the batches of a map-style dataset come: lists of indices, endless, from any position on.

Positions are those of the global stream: all epochs one after the other, before it is dealt to the ranks.
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

_AHEAD = 64  # batches drawn in one go from a sampler of the user's, as each time the global generators are exchanged


class Order(Protocol):
    """The order of a dataset."""

    @property
    def length(self) -> int | None:
        """Batches in an epoch, None where that is unknown."""

    def endless(self, start: int, step: int) -> Iterator[Any]:
        """Yield the index lists at positions `start`, `start + step`, … of the repeated stream."""

    def once(self, start: int, step: int) -> Iterator[Any]:
        """Yield the index lists at those positions of the first epoch only."""


class PositionalOrder:
    """The order of torch's own samplers: a function of the epoch's number, so that any position is reached at once.

    `records(epoch)` gives the indices of one epoch, `count` of them; `batch_size` None yields them one by one.
    """

    length: int

    def __init__(self, records: Callable[[int], Any], count: int, batch_size: int | None, drop_last: bool) -> None:
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
        plain: Callable[[Any], list[int]] = list if isinstance(records, range) else type(records).tolist
        for at in range(start * size, self.length * size, step * size):
            yield plain(records[at : at + size])


def shuffled(sampler: RandomSampler, seed: int) -> Callable[[int], Any]:
    """Return the indices of each epoch as torch's RandomSampler would draw them, from a seed made of (seed, epoch).

    A generator that the user gave decides by its initial seed, instead of the trial's.
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
    """The order of a sampler of the user's: its epochs are drawn again from the first on; no data is read for that.

    Whatever it draws from the global generators is decided by (seed, epoch). `set_epoch` is called on each of `samplers`
    that has it. At most 64 batches are drawn ahead. `mark` tells, once it has begun, a sampler apart that begins otherwise.
    """

    def __init__(self, indices: Iterable[Any], samplers: Sequence[Any], seed: int, length: int | None) -> None:
        self.length = length
        self.mark: int | None = None
        self._indices = indices
        self._samplers = samplers
        self._seed = seed

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
                raise TrialError(empty(f"its {type(self._indices).__name__} yields nothing in epoch {epoch}"))
            epoch += 1

    def once(self, start: int, step: int) -> Iterator[Any]:
        with PrivateRng(derive(self._seed, 0)):
            indices = list(islice(self._indices, self.length))  # one pass, even of a sampler that repeats
        return iter(indices[start::step])

    def _chunks(self, epoch: int) -> Iterator[list[Any]]:
        announce(epoch, *self._samplers)
        rng = PrivateRng(derive(self._seed, epoch))
        with rng:
            indices = iter(self._indices)
        while True:
            with rng:
                chunk = list(islice(indices, _AHEAD))
            if not chunk:
                return
            yield chunk


def announce(epoch: int, *objects: Any) -> None:
    """Tell the epoch to whatever wants to know it: a loader, its dataset, its samplers."""
    for thing in objects:
        set_epoch = getattr(thing, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def empty(why: str, split: str = "training") -> str:
    """Say that a data loader has nothing to give."""
    return f"the {split} data loader is empty: {why}; give it at least one batch"
