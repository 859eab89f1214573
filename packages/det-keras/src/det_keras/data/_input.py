"""Telling the kinds of data apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_core import TrialError

from ..versions import keras
from ._arrays import ArrayFeed
from ._dataset import DatasetFeed
from ._feed import Feed, Reading
from ._sequence import SequenceAdapter, SequenceFeed

InputData = Any
"""A tuple `(x, y)` or `(x, y, sample_weights)` of arrays, or lists or dicts of arrays; a `tf.data.Dataset` that went through
`context.wrap_dataset`; a `keras.utils.Sequence` (`PyDataset`), as it is or in a `SequenceAdapter`."""


def make_feed(data: InputData, name: str, reading: Reading, *, training: bool, wrapped: Callable[[Any], bool]) -> Feed:
    """Return the feed of what `name` (a method of the user's) returned.

    `wrapped` tells whether a dataset went through `wrap_dataset`. Raises TrialError for anything that is no data.
    """
    if isinstance(data, tf.data.Dataset):
        if not wrapped(data):
            raise TrialError(
                f"{name} returned a tf.data.Dataset that is not wrapped; pass it through context.wrap_dataset(dataset) right "
                "after its creation, or through context.experimental.cache_train_dataset()"
            )
        return DatasetFeed(data, name, reading)
    if isinstance(data, SequenceAdapter):
        return SequenceFeed(data, name, reading)
    if isinstance(data, keras.utils.Sequence):
        return SequenceFeed(_adapted(data, reading), name, reading)
    if isinstance(data, tuple):
        return ArrayFeed(data, name, reading, training=training)
    raise TrialError(
        f"{name} returned {type(data).__name__}; return a tuple (x, y) or (x, y, sample_weights) of arrays, a tf.data.Dataset, "
        "a keras.utils.Sequence or a SequenceAdapter"
    )


def _adapted(sequence: Any, reading: Reading) -> SequenceAdapter:
    """Read a sequence as it asks itself (Keras 3's have settings of their own), else as `configure_fit` says."""
    return SequenceAdapter(
        sequence,
        use_multiprocessing=getattr(sequence, "use_multiprocessing", False) or reading.use_multiprocessing,
        workers=max(getattr(sequence, "workers", 1) or 1, reading.workers),
        max_queue_size=reading.max_queue_size,
    )
