"""Which datasets went through `wrap_dataset`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import TrialError


class Wrapped:
    """Shards datasets by rank, each once, and knows again what was made from them."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._known: list[Any] = []  # they are kept, so that no other object gets the id of one

    def wrap(self, dataset: Any, *, shard: bool) -> Any:
        """Return this rank's share of a dataset; what was wrapped before, or made from such, comes back as it is."""
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(f"wrap_dataset got {type(dataset).__name__}; give a tf.data.Dataset")
        if dataset in self:
            return dataset
        share = dataset.shard(self._size, self._rank) if shard and self._size > 1 else dataset
        self.add(share)
        return share

    def add(self, dataset: Any) -> None:
        """Take note of a dataset that is sharded already."""
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
