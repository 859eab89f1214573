"""The one-weight model: its data, and the expected results of training by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OneVar:
    """The model `y = w·x`, its data and its training.

    The fields are the trial's hyperparameters with their defaults.

    An epoch has `batches_per_epoch` batches of `global_batch_size` records. Record j of batch k of
    an epoch (both from 0) has x = 1 + k / batches_per_epoch + spread · j / global_batch_size and
    the label y = x. So without `spread` all records of a batch are equal. Batches come in this
    order. With `shuffle`, batches or records come in an order that is drawn from the trial's seed
    for each epoch. With n ranks, rank r trains part r of n equal parts of every batch. If `noise`
    is not 0, the label of each record or batch is x · (1 + noise · u) in training. The trial draws
    u from its framework's random numbers, as dropout does.

    w begins at 0, the loss of a batch is the mean of (y - w·x)², and plain SGD with the learning
    rate `lr` follows its gradient. Without noise and shuffling the error e = 1 - w has a closed
    form: e₀ = 1, and over batch i (from 0)

        lossᵢ = mᵢ · eᵢ²        eᵢ₊₁ = eᵢ · (1 - 2 · lr · mᵢ)        mᵢ = the mean of the batch's x²

    with any number of ranks. If the gradients of k batches are aggregated and averaged, e changes
    only after every k-th batch, by the factor 1 - 2 · lr · (the mean of the k mᵢ). The validation
    set has the records x = 1, 2, 3 … without noise, in `validation_batches` batches of two.
    """

    lr: float = 0.03
    batches_per_epoch: int = 5
    global_batch_size: int = 2
    noise: float = 0.0
    shuffle: bool = False
    spread: float = 0.0
    validation_batches: int = 1

    @classmethod
    def of(cls, hparams: Mapping[str, Any]) -> OneVar:
        """Return the model with those hyperparameters that are its fields."""
        return cls(**{f.name: hparams[f.name] for f in fields(cls) if f.name in hparams})

    def x(self, batch: int) -> float:
        """Return x of the first record of a batch, which without spread is x of every record.

        Batches are counted from the trial's start.
        """
        return 1 + batch % self.batches_per_epoch / self.batches_per_epoch

    def records(self, batch: int) -> list[float]:
        """Return x of the records of a batch, counted from the trial's start."""
        size = self.global_batch_size
        return [self.x(batch) + self.spread * j / size for j in range(size)]

    def square(self, batch: int) -> float:
        """Return the mean of the squares of a batch's records."""
        return sum(x * x for x in self.records(batch)) / self.global_batch_size

    def validation_records(self) -> list[float]:
        """Return x of the records of the validation set."""
        return [float(x) for x in range(1, 1 + 2 * self.validation_batches)]

    def error(self, batches: int, aggregation: int = 1, length: int | None = None) -> float:
        """Return e = 1 - w after a number of batches.

        With a `length`, `lr` falls linearly with each batch, to 0 at that batch.
        """
        error = 1.0
        for first in range(0, batches - batches % aggregation, aggregation):
            squares = [self.square(batch) for batch in range(first, first + aggregation)]
            lr = self.lr * (1 - first / length) if length else self.lr
            error *= 1 - 2 * lr * sum(squares) / aggregation
        return error

    def weight(self, batches: int, aggregation: int = 1, length: int | None = None) -> float:
        """Return w after a number of batches."""
        return 1 - self.error(batches, aggregation, length)

    def loss(self, batch: int, aggregation: int = 1, length: int | None = None) -> float:
        """Return the loss of a batch, counted from the trial's start."""
        return self.square(batch) * self.error(batch, aggregation, length) ** 2

    def validation_loss(self, batches: int, aggregation: int = 1) -> float:
        """Return the mean loss over the validation set after a number of batches."""
        squares = [x * x for x in self.validation_records()]
        return sum(squares) / len(squares) * self.error(batches, aggregation) ** 2
