"""Remembers which datasets were passed through `wrap_dataset`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import TrialError


class Wrapped:
    """Shards each dataset by rank once, and recognizes datasets that are made from it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        # The datasets are kept, so that no other object gets the id of one.
        self._known: list[Any] = []

    def wrap(self, dataset: Any, *, shard: bool) -> Any:
        """Return this rank's share of a dataset.

        A dataset that was wrapped before, or made from one, is returned unchanged.
        """
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(f"wrap_dataset got {type(dataset).__name__}; give a tf.data.Dataset")
        if dataset in self:
            return dataset
        share = dataset.shard(self._size, self._rank) if shard and self._size > 1 else dataset
        self.add(share)
        return share

    def add(self, dataset: Any) -> None:
        """Remember a dataset that is sharded already."""
        self._known.append(dataset)

    def __contains__(self, dataset: Any) -> bool:
        known = {id(each) for each in self._known}
        waiting = [dataset]
        while waiting:
            each = waiting.pop()
            if id(each) in known:
                return True
            waiting.extend(each._inputs())
        return False
