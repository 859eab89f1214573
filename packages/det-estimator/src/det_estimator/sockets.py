"""The ranks of an estimator over the connections on which they have met: nothing is to be installed for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce as folded
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tensorflow as tf

from det_core import Communicator, DetError, DistributedContext

from .backend import EstimatorBackend, Reduce

if TYPE_CHECKING:
    from det_core.config import Optimizations

v1: Any = tf.compat.v1
_EXCHANGES = "det_exchanges"  # the collection of a graph's exchanges, in the order in which they are made


class Sockets(EstimatorBackend):
    """Gradients travel as arrays over core's authenticated connections, to the chief and from there to all.

    All ranks add up in the order of ranks, so that they get the same numbers to the last bit. The exchanges of one step follow one
    another in the order in which the graph was built; ranks that come to different ones get a DetError, and never each other's
    gradients.
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
        """The ranks have met."""

    def shutdown(self) -> None:
        """The connections are the caller's."""

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
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            number = len(v1.get_collection(_EXCHANGES))

            def means(is_due: Any, *mine: Any) -> list[Any]:
                return self._means(number, mine, compress) if is_due else list(mine)

            given = [tf.constant(True) if due is None else due, *dense]
            with tf.control_dependencies(_before()):
                found = _called(means, given, dense)
            v1.add_to_collection(_EXCHANGES, found[0].op)
            return found

        return reduce

    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        sent = [variable for variable in variables if variable.dtype.base_dtype != tf.string]
        if not sent:
            return tf.no_op()

        def chiefs(*mine: Any) -> list[Any]:
            return list(self._met(lambda: self._control.broadcast(mine if self.ranks.rank == 0 else None)))

        found = _called(chiefs, [variable.read_value() for variable in sent], sent)
        return tf.group(*(variable.assign(value) for variable, value in zip(sent, found, strict=True)))

    def _means(self, number: int, mine: Sequence[Any], compress: bool) -> list[Any]:
        sent = [each.astype(np.float16) if compress and each.dtype == np.float32 else each for each in mine]
        of_ranks = self._met(lambda: _of_one_place(self._control.allgather((number, sent))))
        parts = zip(*of_ranks, strict=True)
        return [_mean(each, own.dtype) for each, own in zip(parts, mine, strict=True)]

    def _met(self, exchange: Callable[[], Any]) -> Any:
        """Exchange something, one after the other, and keep what it fails with, of which the graph keeps the text only."""
        try:
            with self._turn:
                return exchange()
        except Exception as error:
            self.failure = error
            raise


def _of_one_place(answers: list[tuple[int, list[Any]]]) -> list[list[Any]]:
    """Return what the ranks sent. Raises DetError where that is of different places in the graph."""
    numbers = [number for number, _ in answers]
    if len(set(numbers)) > 1:
        raise DetError(
            f"the ranks exchange different gradients at the same time ({numbers} by rank); compute the gradients of several "
            "optimizers in one order, outside of tf.cond"
        )
    return [arrays for _, arrays in answers]


def _mean(parts: Sequence[Any], dtype: Any) -> Any:
    total = folded(np.add, (np.asarray(part, dtype) for part in parts))
    return np.asarray(total / len(parts), dtype)


def _called(function: Callable[..., list[Any]], given: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Add a call of a Python function to the graph, whose results are `like` others."""
    found: list[Any] = list(tf.numpy_function(function, list(given), [each.dtype.base_dtype for each in like]))
    for each, one in zip(found, like, strict=True):
        each.set_shape(one.shape)
    return found


def _before() -> list[Any]:
    """Return the exchange that comes before the next one, if this graph or one that it is a branch of has any."""
    around = _around(v1.get_default_graph())
    return [op for op in v1.get_collection(_EXCHANGES) if op.graph in around][-1:]


def _around(graph: Any) -> list[Any]:
    """Return a graph and those that it is a branch or a loop of."""
    found = [graph]
    while (outer := getattr(found[-1], "outer_graph", None)) is not None:
        found.append(outer)
    return found
