"""Distinguishes the kinds of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_core import TrialError

from ..versions import keras
from ._arrays import ArrayFeed
from ._cache import epoch_of
from ._feed import Feed, Reading
from ._sequence import SequenceAdapter, SequenceFeed

InputData = Any
"""One of these:

- a tuple `(x, y)` or `(x, y, sample_weights)` of arrays, or of lists or dicts of arrays
- a `tf.data.Dataset` that was passed through `context.wrap_dataset`
- a `keras.utils.Sequence` (`PyDataset`), with or without a `SequenceAdapter`
"""


def make_feed(
    data: InputData, name: str, reading: Reading, *, training: bool, wrapped: Callable[[Any], bool]
) -> Feed:
    """Return the feed of the data that `name`, a method of the user, returned.

    `wrapped` says whether a dataset was passed through `wrap_dataset`. Raises TrialError for
    anything that is not data.
    """
    if isinstance(data, tf.data.Dataset):
        if not wrapped(data):
            raise TrialError(
                f"{name} returned a tf.data.Dataset that is not wrapped; pass it through"
                " context.wrap_dataset(dataset) right after its creation, or through"
                " context.experimental.cache_train_dataset()"
            )
        return DatasetFeed(data, name, reading)
    if isinstance(data, SequenceAdapter):
        return SequenceFeed(data, name, reading)
    if isinstance(data, keras.utils.Sequence):
        return SequenceFeed(_adapted(data, reading), name, reading)
    if isinstance(data, tuple):
        return ArrayFeed(data, name, reading, training=training)
    raise TrialError(
        f"{name} returned {type(data).__name__}; return a tuple (x, y) or (x, y, sample_weights) of"
        " arrays, a tf.data.Dataset, a keras.utils.Sequence or a SequenceAdapter"
    )


def _adapted(sequence: Any, reading: Reading) -> SequenceAdapter:
    """Return a sequence in an adapter with its own settings or those of `configure_fit`.

    Sequences of Keras 3 have such settings.
    """
    return SequenceAdapter(
        sequence,
        use_multiprocessing=getattr(sequence, "use_multiprocessing", False)
        or reading.use_multiprocessing,
        workers=max(getattr(sequence, "workers", 1) or 1, reading.workers),
        max_queue_size=reading.max_queue_size,
    )


class DatasetFeed(Feed):
    """Batches of a pipeline, which is repeated.

    To begin at a batch, the feed reads and skips those before it. A pipeline that reads from a
    cached dataset begins at the run's first batch itself. It is neither repeated nor skipped.
    """

    def __init__(self, dataset: Any, name: str, reading: Reading) -> None:
        self._dataset, self._reading = dataset, reading
        spec = dataset.element_spec
        if not reading.any_structure and not (isinstance(spec, tuple) and len(spec) in (2, 3)):
            raise TrialError(
                f"{name} returned a tf.data.Dataset of {_described(spec)}; let its elements be"
                " (inputs, targets) or (inputs, targets, sample_weights)"
            )
        if any(
            getattr(each, "shape", None) is not None and each.shape.rank == 0
            for each in tf.nest.flatten(spec)
        ):
            raise TrialError(
                f"{name} returned a tf.data.Dataset of single records; call"
                " .batch(context.get_per_slot_batch_size()) on it"
            )
        self._cached = epoch_of(dataset)
        self._length = int(dataset.cardinality())
        if self._length == 0:
            raise TrialError(f"{name} returned an empty tf.data.Dataset; give it a record at least")

    @property
    def batches_per_epoch(self) -> int | None:
        if self._cached is not None:
            return self._cached
        return self._length if self._length > 0 else self._reading.batches_per_epoch

    @property
    def pipeline(self) -> Any:
        return self._dataset

    def training(self, first: int) -> Any:
        if self._cached is not None:
            return self._dataset
        return self._dataset.repeat().skip(first) if first else self._dataset.repeat()

    def validation(self) -> Any:
        steps = self._reading.validation_steps
        if self._length == tf.data.INFINITE_CARDINALITY and not steps:
            raise TrialError(
                "build_validation_data_loader returned a tf.data.Dataset without an end; give "
                "context.configure_fit(validation_steps=...), or leave out .repeat()"
            )
        return self._dataset.take(steps) if steps else self._dataset


def _described(spec: Any) -> str:
    if isinstance(spec, tuple):
        return f"tuples of {len(spec)}"
    return "dicts" if isinstance(spec, dict) else "single tensors"
