"""The operations that det-estimator needs in addition to those of every backend.

They are operations of a graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from det_core import Backend

if TYPE_CHECKING:
    from det_core.config import Optimizations

Reduce = Callable[..., list[Any]]
"""`reduce(gradients, due=None)` returns the means of the gradients over the ranks.

It returns the gradients unchanged if the tensor `due` is false. The mean of `tf.IndexedSlices`
consists of the slices of all ranks, in the order of ranks, divided by their number. One process
with the whole batch has them too.
"""


def is_sparse(gradient: Any) -> bool:
    """Return whether a gradient consists of rows, as that of an embedding does."""
    return isinstance(gradient, tf.IndexedSlices)


class EstimatorBackend(Backend):
    """A backend that reduces gradients in a graph of TensorFlow 1.

    `failure` is the error of an exchange. The graph itself reports only that there was one.
    """

    failure: Exception | None = None

    @abstractmethod
    def reducer(self, optimizations: Optimizations) -> Reduce:
        """Return a function that adds the means of gradients over the ranks to the graph.

        Every rank makes the same graph.
        """

    @abstractmethod
    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        """Return an op that gives variables the chief's values on every rank, except strings."""
