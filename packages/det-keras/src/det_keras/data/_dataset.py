"""`tf.data`: any pipeline that went through `context.wrap_dataset`, or begins at a cache."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_core import TrialError

from ._cache import epoch_of
from ._feed import Feed, Reading


class DatasetFeed(Feed):
    """Batches of a pipeline, which is repeated; behind a position it is found by reading past what was trained.

    A pipeline on a cached dataset begins where training does, and is neither repeated nor read past.
    """

    def __init__(self, dataset: Any, name: str, reading: Reading) -> None:
        self._dataset, self._reading = dataset, reading
        spec = dataset.element_spec
        if not reading.any_structure and not (isinstance(spec, tuple) and len(spec) in (2, 3)):
            raise TrialError(
                f"{name} returned a tf.data.Dataset of {_described(spec)}; let its elements be (inputs, targets) or "
                "(inputs, targets, sample_weights)"
            )
        if any(getattr(each, "shape", None) is not None and each.shape.rank == 0 for each in tf.nest.flatten(spec)):
            raise TrialError(
                f"{name} returned a tf.data.Dataset of single records; call .batch(context.get_per_slot_batch_size()) on it"
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
