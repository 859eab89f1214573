"""Shows an observer the batches of a `tf.data` pipeline in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Shown:
    """Calls `observe` with the number and the arrays of each batch of a dataset, in order.

    Batches that a pipeline prefetches are shown when they are read. `number` is the number of the
    next batch.
    """

    def __init__(self, observe: Callable[[int, Any], None], number: int = 0) -> None:
        self._observe, self.number = observe, number

    def of(self, dataset: Any) -> Any:
        """Return a dataset that gives the same batches and shows them."""

        def shown(*batch: Any) -> Any:
            leaves = tf.nest.flatten(batch, expand_composites=True)
            with tf.control_dependencies([tf.py_function(self._show, leaves, tf.int64)]):
                passed = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
            return passed if len(passed) > 1 else passed[0]

        return dataset.map(shown)

    def _show(self, *leaves: Any) -> int:
        self._observe(self.number, [leaf.numpy() for leaf in leaves])
        self.number += 1
        return self.number
