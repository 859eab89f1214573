"""Connects the ranks of an estimator over their own connections, without further software."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce as folded
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tensorflow as tf

from det_core import Communicator, DetError, DistributedContext

from .backend import EstimatorBackend, Reduce, is_sparse

if TYPE_CHECKING:
    from det_core.config import Optimizations

v1: Any = tf.compat.v1
# The collection of a graph's exchanges, in the order in which they are made.
_EXCHANGES = "det_exchanges"
# Makes one array of those of all ranks, in a type.
_Way = Callable[[Sequence[Any], Any], Any]


class Sockets(EstimatorBackend):
    """Sends gradients as arrays over the authenticated connections of a `DistributedContext`.

    They go to the chief and from there to all ranks. All ranks add up in the order of ranks, so
    that they get equal bits. The exchanges of one step run in the order in which the graph was
    built. Ranks at different exchanges get a DetError, and never each other's gradients.
    """

    def __init__(self) -> None:
        self._control: Communicator = DistributedContext()
        self._turn = threading.Lock()

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        backend = cls()
        backend._control, backend.ranks, backend.chief_ip = control, control.ranks, control.chief_ip
        return backend

    def init(self) -> None:
        """Do nothing, because the ranks are already connected."""

    def shutdown(self) -> None:
        """Do nothing, because the caller owns the connections."""

    def barrier(self) -> None:
        self._control.barrier()

    def allgather(self, value: Any) -> list[Any]:
        return self._control.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._control.broadcast(value)

    # In the graph

    def reducer(self, optimizations: Optimizations) -> Reduce:
        compress = optimizations.gradient_compression

        def reduce(gradients: Sequence[Any], due: Any = None) -> list[Any]:
            parts = [
                each.values if is_sparse(each) else tf.convert_to_tensor(each) for each in gradients
            ]
            indices = [each.indices for each in gradients if is_sparse(each)]
            ways = [_mean_rows if is_sparse(each) else _mean for each in gradients] + [
                _joined
            ] * len(indices)
            number = len(v1.get_collection(_EXCHANGES))

            def means(is_due: Any, *mine: Any) -> list[Any]:
                return self._means(number, mine, ways, compress) if is_due else list(mine)

            mine = [*parts, *indices]
            # Other ranks may have more or fewer rows.
            like = [
                tf.TensorSpec(
                    (
                        each.shape
                        if way is _mean
                        else tf.TensorShape([None]).concatenate(each.shape[1:])
                    ),
                    each.dtype,
                )
                for each, way in zip(mine, ways, strict=True)
            ]
            with tf.control_dependencies(_before()):
                found = _called(means, [tf.constant(True) if due is None else due, *mine], like)
            v1.add_to_collection(_EXCHANGES, found[0].op)
            rest = iter(found[len(parts) :])
            return [
                tf.IndexedSlices(value, next(rest), each.dense_shape) if is_sparse(each) else value
                for each, value in zip(gradients, found, strict=False)
            ]

        return reduce

    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        sent = [variable for variable in variables if variable.dtype.base_dtype != tf.string]
        if not sent:
            return tf.no_op()

        def chiefs(*mine: Any) -> list[Any]:
            return list(
                self._met(lambda: self._control.broadcast(mine if self.ranks.rank == 0 else None))
            )

        found = _called(chiefs, [variable.read_value() for variable in sent], sent)
        return tf.group(
            *(variable.assign(value) for variable, value in zip(sent, found, strict=True))
        )

    def _means(
        self, number: int, mine: Sequence[Any], ways: Sequence[_Way], compress: bool
    ) -> list[Any]:
        sent = [
            each.astype(np.float16) if compress and each.dtype == np.float32 else each
            for each in mine
        ]
        of_ranks = self._met(lambda: _of_one_place(self._control.allgather((number, sent))))
        parts = zip(*of_ranks, strict=True)
        return [way(each, own.dtype) for way, each, own in zip(ways, parts, mine, strict=True)]

    def _met(self, exchange: Callable[[], Any]) -> Any:
        """Run one exchange at a time. Keep its error, because the graph keeps only the text."""
        try:
            with self._turn:
                return exchange()
        except Exception as error:
            self.failure = error
            raise


def _of_one_place(gathered: list[tuple[int, list[Any]]]) -> list[list[Any]]:
    """Return the arrays of the ranks. Raises DetError if they come from different exchanges."""
    numbers = [number for number, _ in gathered]
    if len(set(numbers)) > 1:
        raise DetError(
            f"the ranks exchange different gradients at the same time ({numbers} by rank); compute"
            " the gradients of several optimizers in one order, outside of tf.cond"
        )
    return [arrays for _, arrays in gathered]


def _mean(parts: Sequence[Any], dtype: Any) -> Any:
    total = folded(np.add, (np.asarray(part, dtype) for part in parts))
    return np.asarray(total / len(parts), dtype)


def _joined(parts: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate([np.asarray(part, dtype) for part in parts])


def _mean_rows(parts: Sequence[Any], dtype: Any) -> Any:
    return np.asarray(_joined(parts, dtype) / len(parts), dtype)


def _called(
    function: Callable[..., list[Any]], given: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """Add a call of a Python function to the graph.

    The results have the types and shapes of `like`.
    """
    found: list[Any] = list(
        tf.numpy_function(function, list(given), [each.dtype.base_dtype for each in like])
    )
    for each, one in zip(found, like, strict=True):
        each.set_shape(one.shape)
    return found


def _before() -> list[Any]:
    """Return the last exchange in this graph, or in one around it, as a list of at most one."""
    around = _around(v1.get_default_graph())
    return [op for op in v1.get_collection(_EXCHANGES) if op.graph in around][-1:]


def _around(graph: Any) -> list[Any]:
    """Return a graph and the graphs that it is a branch or a loop of."""
    found = [graph]
    while (outer := getattr(found[-1], "outer_graph", None)) is not None:
        found.append(outer)
    return found
