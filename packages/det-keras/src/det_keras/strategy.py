"""The `tf.distribute` strategy of a script's processes, with what Keras 3 needs to train under it.

Keras 3 (3.15 is known to) asks two things of a strategy of several workers that no strategy does: `reduce` of a batch, which is
a nest of tensors, to learn its shapes, and `reduce(..., axis=0)` of metrics, which are scalars. `Workers` answers both. Keras 2
asks neither, and there `Workers` is TensorFlow's own strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from .versions import KERAS_3


class Workers(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """TensorFlow's MultiWorkerMirroredStrategy, under which `fit` of Keras 3 works as that of Keras 2 does."""

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduce as TensorFlow does; a nest to this process's values, and scalars over the replicas whatever `axis` is."""
        if KERAS_3 and axis is None and isinstance(value, (tuple, list, Mapping)):
            return tf.nest.map_structure(lambda each: self.experimental_local_results(each)[0], value)
        if KERAS_3 and axis == 0 and self._is_scalar(value):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def _is_scalar(self, value: Any) -> bool:
        shape = getattr(self.experimental_local_results(value)[0], "shape", None)
        return shape is not None and shape.rank == 0


def strategy_of(workers: int) -> Any:
    """Return the strategy of a run of so many workers: of one, for its GPUs where it sees several."""
    if workers > 1:
        return Workers()
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()
