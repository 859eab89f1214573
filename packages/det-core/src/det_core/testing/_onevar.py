"""The one-weight model: its data, and what must come of training it, by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OneVar:
    """The model `y = w·x`, its data and its training; the hyperparameters of the kit's trial, with their defaults.

    The data is an epoch of `batches_per_epoch` batches of `global_batch_size` records. Every record of batch k of an epoch
    (from 0) holds x = 1 + k / batches_per_epoch and the label y = x. Batches come in this order, or with `shuffle` in an
    order drawn from the trial's seed anew in each epoch. With `noise` not 0 the label of each record or batch is
    x · (1 + noise · u), where the trial draws u from its framework's random numbers, as dropout does, while it trains.

    w begins at 0, the loss of a batch is the mean of (y - w·x)², and plain SGD with the learning rate `lr` follows its
    gradient. With neither noise nor shuffling the error e = 1 - w has a closed form: e₀ = 1, and over batch i (from 0)

        lossᵢ = xᵢ² · eᵢ²        eᵢ₊₁ = eᵢ · (1 - 2 · lr · xᵢ²)        xᵢ = 1 + (i mod batches_per_epoch) / batches_per_epoch

    Where the gradients of k batches are aggregated and averaged, e changes behind every k-th batch only, by the factor
    1 - 2 · lr · (the mean of the k xᵢ²). The validation set holds the records x = 1 and x = 2, without noise.
    """

    lr: float = 0.03
    batches_per_epoch: int = 5
    global_batch_size: int = 2
    noise: float = 0.0
    shuffle: bool = False

    @classmethod
    def of(cls, hparams: Mapping[str, Any]) -> OneVar:
        """Take the hyperparameters that are the model's."""
        return cls(**{f.name: hparams[f.name] for f in fields(cls) if f.name in hparams})

    def x(self, batch: int) -> float:
        """Return what the records of a batch hold, counted from the trial's start."""
        return 1 + batch % self.batches_per_epoch / self.batches_per_epoch

    def error(self, batches: int, aggregation: int = 1) -> float:
        """Return e = 1 - w after so many batches."""
        error = 1.0
        for first in range(0, batches - batches % aggregation, aggregation):
            squares = [self.x(batch) ** 2 for batch in range(first, first + aggregation)]
            error *= 1 - 2 * self.lr * sum(squares) / aggregation
        return error

    def weight(self, batches: int, aggregation: int = 1) -> float:
        """Return w after so many batches."""
        return 1 - self.error(batches, aggregation)

    def loss(self, batch: int, aggregation: int = 1) -> float:
        """Return the loss of a batch, counted from the trial's start."""
        return (self.x(batch) * self.error(batch, aggregation)) ** 2

    def validation_loss(self, batches: int, aggregation: int = 1) -> float:
        """Return the mean loss over the validation set after so many batches."""
        return 2.5 * self.error(batches, aggregation) ** 2
