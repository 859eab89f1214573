"""The verbs that det-estimator needs beside those of every backend, as operations of a graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from det_core import Backend

if TYPE_CHECKING:
    from det_core.config import Optimizations

Reduce = Callable[..., list[Any]]
"""`reduce(gradients, due=None)` returns their means over the ranks; where the tensor `due` is false, they come back as they are."""


class EstimatorBackend(Backend):
    """A backend that reduces gradients in a graph of TensorFlow 1.

    `failure` is what an exchange failed with, where the graph can only say that one did.
    """

    failure: Exception | None = None

    @abstractmethod
    def reducer(self, optimizations: Optimizations) -> Reduce:
        """Return a function that adds to the graph the means of gradients over the ranks. Every rank makes the same graph."""

    @abstractmethod
    def broadcast_variables(self, variables: Sequence[Any]) -> Any:
        """Return an op that gives every rank the chief's values of variables, but for those of text."""
