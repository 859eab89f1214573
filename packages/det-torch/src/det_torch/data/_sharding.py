"""Finds out whether a loader reads all of the data, which det then deals to the ranks, or only this
rank's share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler

from ..samplers import DistributedSampler, SkipSampler
from ._libraries import ranks_known_to


def samplers(loader: Any) -> list[Any]:
    """Return the samplers of a loader, the outermost first."""
    found: list[Any] = []
    waiting = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while waiting:
        sampler = waiting.pop(0)
        if sampler is None or any(sampler is other for other in found):
            continue
        found.append(sampler)
        waiting += (
            [vars(sampler).get(name) for name in ("sampler", "batch_sampler")]
            if hasattr(sampler, "__dict__")
            else []
        )
    return found


def declared(loader: Any) -> bool | None:
    """Return `det_sharded` of the loader, its dataset, or a dataset that this one wraps.

    None if none of them has it.
    """
    thing = loader
    while thing is not None:
        sharded = getattr(thing, "det_sharded", None)
        if sharded is not None:
            return bool(sharded)
        thing = getattr(thing, "dataset", None)
    return None


def is_sharded(loader: Any) -> bool:
    """Return whether a loader gives only this rank's share.

    It does if it says so by `det_sharded`, or if its dataset or one of its samplers knows of
    several ranks.
    """
    sharded = declared(loader)
    if sharded is not None:
        return sharded
    return ranks_known_to(loader) > 1 or any(
        isinstance(s, DistributedSampler) or _replicas(s) > 1 for s in samplers(loader)
    )


def is_skipped(loader: Any) -> bool:
    """Return whether the user's own samplers already skip to the position where the run begins."""
    return any(isinstance(s, SkipSampler) for s in samplers(loader))


def read_by_all(loader: Any, size: int, split: str) -> str | None:
    """Return advice on data that every rank reads whole to use only its share.

    Returns None for a list of batches, and for data that declares whether it is sharded.
    """
    if (
        size == 1
        or isinstance(loader, Sequence)
        or declared(loader) is not None
        or is_sharded(loader)
    ):
        return None
    name = type(getattr(loader, "dataset", loader)).__name__
    return (
        f"each of {size} ranks reads all of the {split} data ({name}) and keeps one batch in"
        f" {size}; let it read the share of context.distributed.rank alone and set its det_sharded"
        " to True, or set that to False if this is meant"
    )


def without_padding(loader: Any) -> Iterable[Any] | None:
    """Return the index lists of a loader with torch's DistributedSampler, without the records that
    it repeats.

    The sampler repeats records to give all ranks equally many. Returns None for any other loader.
    """
    batches = loader.batch_sampler
    sampler = (
        batches.sampler
        if type(batches) is BatchSampler
        else loader.sampler
        if batches is None
        else None
    )
    if type(sampler) is not torch.utils.data.DistributedSampler or sampler.drop_last:
        return None
    records = _Beginning(sampler)
    return (
        records if batches is None else BatchSampler(records, batches.batch_size, batches.drop_last)
    )


class _Beginning(torch.utils.data.Sampler[Any]):
    """Yields the indices of a DistributedSampler until it begins to repeat records."""

    def __init__(self, sampler: torch.utils.data.DistributedSampler[Any]) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        records: Any = self.sampler.dataset
        return len(range(self.sampler.rank, len(records), self.sampler.num_replicas))

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), len(self))


def _replicas(sampler: Any) -> int:
    found = getattr(sampler, "num_replicas", None)
    return found if isinstance(found, int) else 1
