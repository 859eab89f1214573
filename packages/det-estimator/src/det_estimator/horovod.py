"""The ranks of an estimator over Horovod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from det_horovod import Begun

if TYPE_CHECKING:
    from det_core.config import Optimizations


class HorovodBackend(Begun):
    """Horovod's global process set."""

    module = "horovod.tensorflow"

    # In the graph

    def reducer(self, optimizations: Optimizations) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function that adds to the graph the means of gradients over the ranks, in one grouped allreduce."""
        hvd = self._hvd
        compression = hvd.Compression.fp16 if optimizations.gradient_compression else hvd.Compression.none

        def reduce(gradients: Sequence[Any]) -> list[Any]:
            found: list[Any] = hvd.grouped_allreduce(list(gradients), op=hvd.Average, compression=compression)
            return found

        return reduce

    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        """Return an op that gives every rank the chief's values."""
        sent = [variable for variable in variables if variable.dtype.base_dtype != tf.string]
        return tf.group(*(variable.assign(self._hvd.broadcast(variable, 0)) for variable in sent))
