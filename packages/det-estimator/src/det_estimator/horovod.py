"""Connects the ranks of an estimator over Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from det_horovod import Begun

from .backend import EstimatorBackend, Reduce, is_sparse

if TYPE_CHECKING:
    from det_core.config import Optimizations


class HorovodBackend(Begun, EstimatorBackend):
    """Horovod's global process set. Dense gradients are reduced in one grouped allreduce."""

    module = "horovod.tensorflow"

    def reducer(self, optimizations: Optimizations) -> Reduce:
        hvd = self._hvd
        compression = (
            hvd.Compression.fp16 if optimizations.gradient_compression else hvd.Compression.none
        )

        def rows(slices: Any) -> Any:
            # Horovod's own reduction of a group gives slices the shapes of other gradients.
            values = slices.values / tf.cast(self.ranks.size, slices.values.dtype)
            sent, context = compression.compress(values)
            found = compression.decompress(hvd.allgather(sent), context)
            return tf.IndexedSlices(found, hvd.allgather(slices.indices), slices.dense_shape)

        def means(gradients: Sequence[Any]) -> list[Any]:
            dense = [each for each in gradients if not is_sparse(each)]
            found = iter(hvd.grouped_allreduce(dense, op=hvd.Average, compression=compression))
            return [rows(each) if is_sparse(each) else next(found) for each in gradients]

        def reduce(gradients: Sequence[Any], due: Any = None) -> list[Any]:
            if due is None:
                return means(gradients)
            return list(
                tf.cond(
                    due, lambda: means(gradients), lambda: [tf.identity(each) for each in gradients]
                )
            )

        return reduce

    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        sent = [variable for variable in variables if variable.dtype.base_dtype != tf.string]
        return tf.group(*(variable.assign(self._hvd.broadcast(variable, 0)) for variable in sent))
