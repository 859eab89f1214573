"""Arrays in memory: `(x, y)` and `(x, y, sample_weights)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from det_core import TrialError

from ..versions import keras
from ._feed import ENDLESS, Feed, Reading

_PARTS = ("x", "y", "sample_weights")


class ArrayFeed(Feed):
    """Batches of arrays, in an order that depends on the seed and the epoch only.

    An epoch of training leaves out the records that do not fill a batch of all ranks. Without
    shuffling, the next epoch begins with them. Validation uses all records.
    """

    def __init__(
        self, data: tuple[Any, ...], name: str, reading: Reading, *, training: bool
    ) -> None:
        if len(data) not in (2, 3):
            raise TrialError(
                f"{name} returned a tuple of {len(data)}; return (x, y) or (x, y, sample_weights)"
            )
        if reading.batch_size is None:
            raise TrialError(
                f"{name} returned arrays, but nothing says how to batch them; set the"
                " hyperparameter global_batch_size"
            )
        self._reading, self._batch = reading, reading.batch_size
        with tf.device("cpu"):
            self._tensors = tuple(
                _tensors(part, f"{_PARTS[i]} of {name}") for i, part in enumerate(data)
            )
        self._records = _length(self._tensors, name)
        if training and self._batch * reading.size > self._records:
            raise TrialError(
                f"{name} returned {self._records} records, fewer than the"
                f" {self._batch * reading.size} of one batch; make global_batch_size smaller"
            )

    @property
    def batches_per_epoch(self) -> int:
        return self._records // (self._batch * self._reading.size)

    @property
    def batch_size(self) -> int:
        return self._batch

    def training(self, first: int) -> Any:
        epochs = tf.data.Dataset.range(first // self.batches_per_epoch, ENDLESS)
        indices = epochs.flat_map(self._indices).skip(first % self.batches_per_epoch)
        return indices.map(self._records_at, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        )

    def validation(self) -> Any:
        mine = tf.data.Dataset.range(self._reading.rank, self._records, self._reading.size)
        if self._reading.rank >= self._records:
            return None
        batches = mine.batch(self._batch).take(self._reading.validation_steps or -1)
        return batches.map(self._records_at, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        )

    def _indices(self, epoch: Any) -> Any:
        """Return the record numbers of this rank's batches in an epoch."""
        batches, size, rank = self.batches_per_epoch, self._reading.size, self._reading.rank
        used = batches * self._batch * size
        order = tf.range(self._records, dtype=tf.int64)
        if self._reading.shuffle:
            seed = tf.stack([tf.constant(self._reading.seed, tf.int64), epoch])
            order = tf.random.experimental.stateless_shuffle(order, seed=seed)
        else:
            order = tf.roll(order, -(epoch * used % self._records), 0)
        rows = tf.reshape(order[:used], (batches, size, self._batch))
        return tf.data.Dataset.from_tensor_slices(rows[:, rank])

    def _records_at(self, indices: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)


def _tensors(part: Any, name: str) -> Any:
    """Convert arrays, and lists and dicts of arrays, to tensors.

    Real numbers get Keras's default type.
    """
    if isinstance(part, dict):
        return {key: _tensors(value, f"{key!r} in {name}") for key, value in part.items()}
    if isinstance(part, (list, tuple)) and part and all(hasattr(each, "shape") for each in part):
        return tuple(_tensors(each, f"[{i}] in {name}") for i, each in enumerate(part))
    if isinstance(part, (tf.RaggedTensor, tf.Tensor)):
        return part
    try:
        array = np.asarray(part)
        if array.dtype.kind == "f":
            array = array.astype(keras.backend.floatx(), copy=False)
        tensor = tf.convert_to_tensor(array)
    except (ValueError, TypeError) as error:
        raise TrialError(
            f"{name} is {type(part).__name__}, which is no array: {str(error).splitlines()[0]}"
        ) from error
    if tensor.shape.rank == 0:
        raise TrialError(f"{name} is {part!r:.60}; give an array with a record in each row")
    return tensor


def _length(parts: tuple[Any, ...], name: str) -> int:
    lengths = {
        int(tensor.shape[0]): _PARTS[i]
        for i, part in enumerate(parts)
        for tensor in tf.nest.flatten(part)
    }
    if len(lengths) != 1:
        found = ", ".join(f"{part} {length}" for length, part in lengths.items())
        raise TrialError(
            f"the arrays that {name} returned differ in length: {found} records; give one of each"
            " for every record"
        )
    return next(iter(lengths))
