"""Caches of datasets on disk, for `context.experimental`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from det_core import TrialContext, TrialError
from det_keras.data import CachedDataset, epoch_of
from det_keras.experimental import DatasetCaches, Make

from .wrapped import Begun, mark


class Experimental(DatasetCaches):
    """`context.experimental`: features that may change.

    The caches are those of det-keras, and shared with its trials. `count` is called for each
    dataset, because an `input_fn` is called several times.
    """

    def __init__(self, context: TrialContext, count: Callable[[], None]) -> None:
        super().__init__(context)
        self._count = count
        self._used: dict[str, Any] = {}

    def _claim(self, what: str, make: Make) -> None:
        # The code is one object, also if an `input_fn` defines the function again in each call.
        code = make.__code__
        if self._used.setdefault(what, code) is not code:
            raise TrialError(f"{what} is used twice; a trial has one dataset of each kind")
        self._count()

    def _opened(self, open_records: Callable[[], CachedDataset]) -> CachedDataset:
        def opened() -> CachedDataset:
            if not tf.executing_eagerly():
                raise TrialError(
                    "cached datasets are read and written eagerly, which"
                    " tf.compat.v1.disable_v2_behavior() or disable_eager_execution() prevents;"
                    " leave that call out, or wrap_dataset instead"
                )
            return open_records()

        # A new thread is in no graph.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(opened).result()

    def _known(self, dataset: Any) -> Any:
        # The epoch of a validation dataset is None. It begins at its first record.
        epoch = epoch_of(dataset)
        return mark(dataset, Begun(self._context.run.first_batch, epoch) if epoch else None)
