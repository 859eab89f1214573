"""What a user writes: parameters, a loss, an optimizer, and the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from det_core import TrialContext

if TYPE_CHECKING:
    import jax
    import optax

    from .data import ArrayData


class JaxTrial(ABC):
    """One model with its data and its optimizer.

    `loss` and `evaluate` are compiled: they must be pure. Parameters and batches are pytrees of
    arrays.
    """

    def __init__(self, context: TrialContext) -> None:
        self.context = context

    @abstractmethod
    def init_params(self, key: jax.Array) -> Any:
        """Return the parameters as they are before the first batch."""

    @abstractmethod
    def build_optimizer(self) -> optax.GradientTransformation:
        """Return the optimizer."""

    @abstractmethod
    def build_data(self, split: str) -> ArrayData:
        """Return the data of the split `training` or `validation`."""

    @abstractmethod
    def loss(
        self, params: Any, batch: Any, key: jax.Array
    ) -> jax.Array | tuple[jax.Array, dict[str, jax.Array]]:
        """Return the mean loss of a batch of all ranks, or that and further metrics.

        `key` is another one for each batch.
        """

    def finish(self, params: Any) -> Any:
        """Return what is validated and saved when training is over, such as an average.

        By default the parameters as they are.
        """
        return params

    @abstractmethod
    def evaluate(self, params: Any, batch: Any) -> dict[str, jax.Array]:
        """Return the metrics of a validation batch, each a mean over its records."""
