"""Datasets on disk, with each record by its number, so that a resumed run can continue exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import TrialError
from det_core.data import DatasetCache, Records, ValueCodec

from ._feed import ENDLESS

# The number of records that are read at a time.
_BLOCK = 256
_CODEC = ValueCodec()
_BATCHES = "_det_batches_per_epoch"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The records that one rank reads: `batch` of every `batch` times `size`.

    It begins with batch `first`.
    """

    seed: int
    rank: int
    size: int
    batch: int
    first: int


class CachedDataset:
    """The records of a dataset in det's cache. Each is a list of serialized tensors."""

    def __init__(self, records: Records, spec: Any) -> None:
        self._stored, self._spec = records, spec

    @classmethod
    def open(
        cls, cache: DatasetCache, name: str, version: str, make: Callable[[], Any]
    ) -> CachedDataset:
        """Return the cache of a name and a version.

        If there is none, the dataset of `make()` is written first. Raises TrialError if the cache
        holds records of another kind.
        """
        dataset = make()
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(
                f"the function that makes {name!r} returned {type(dataset).__name__}; return a"
                " tf.data.Dataset"
            )
        spec = dataset.element_spec
        return cls(
            cache.open(name, version, lambda *_: _encoded(dataset, name), kind=repr(spec)), spec
        )

    def __len__(self) -> int:
        return len(self._stored)

    def whole(self, rank: int, size: int) -> Any:
        """Return a dataset of this rank's records, once each."""
        return self._records(tf.data.Dataset.range(rank, len(self), size))

    def endless(self, share: Share, *, shuffle: bool, reshuffle: bool) -> Any:
        """Return an endless dataset of this rank's records, beginning with its first batch.

        An epoch leaves out the records that do not fill a batch of all ranks. Unless each epoch is
        shuffled differently, the next one begins with them.
        """
        batches = len(self) // (share.batch * share.size)
        if not batches:
            raise TrialError(
                f"the cached dataset has {len(self)} records, fewer than the"
                f" {share.batch * share.size} of one batch; make global_batch_size smaller"
            )

        used = batches * share.batch * share.size

        def indices(epoch: Any) -> Any:
            order = tf.range(len(self), dtype=tf.int64)
            if shuffle:
                seed = tf.stack(
                    [
                        tf.constant(share.seed, tf.int64),
                        epoch if reshuffle else tf.zeros_like(epoch),
                    ]
                )
                order = tf.random.experimental.stateless_shuffle(order, seed=seed)
            if not (shuffle and reshuffle):
                order = tf.roll(order, -(epoch * used % len(self)), 0)
            rows = tf.reshape(order[:used], (batches, share.size, share.batch))
            return tf.data.Dataset.from_tensor_slices(tf.reshape(rows[:, share.rank], (-1,)))

        epochs = tf.data.Dataset.range(share.first // batches, ENDLESS)
        dataset = self._records(epochs.flat_map(indices).skip(share.first % batches * share.batch))
        setattr(dataset, _BATCHES, batches)
        return dataset

    def _records(self, numbers: Any) -> Any:
        parts = tf.nest.flatten(self._spec)

        def parsed(record: Any) -> Any:
            tensors = [
                tf.ensure_shape(tf.io.parse_tensor(record[i], part.dtype), part.shape)
                for i, part in enumerate(parts)
            ]
            return tf.nest.pack_sequence_as(self._spec, tensors)

        read = self._reader(len(parts))
        blocks = numbers.batch(_BLOCK).map(
            lambda block: tf.ensure_shape(
                tf.numpy_function(read, [block], tf.string), (None, len(parts))
            )
        )
        return (
            blocks.unbatch()
            .map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _reader(self, parts: int) -> Callable[[Any], Any]:
        stored, decode = self._stored, _CODEC.decode

        def read(block: Any) -> Any:
            return np.array(
                [decode(stored[number]) for number in block.tolist()], dtype=object
            ).reshape(-1, parts)

        return read


def epoch_of(dataset: Any) -> int | None:
    """Return the batches in an epoch of a cached training dataset, or None for others.

    Datasets that are made from a cached one count too.
    """
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        found: int | None = getattr(each, _BATCHES, None)
        if found is not None:
            return found
        waiting.extend(each._inputs())
    return None


def _encoded(dataset: Any, name: str) -> Iterator[bytes]:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise TrialError(
            f"the dataset {name!r} has no end and cannot be cached; leave out .repeat()"
        )
    for record in dataset:
        yield _CODEC.encode(
            [tf.io.serialize_tensor(tensor).numpy() for tensor in tf.nest.flatten(record)]
        )
