"""The one-weight model with what real models have, and an adapter that is right about it.

The same is there without det.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from det_core import Metrics
from det_testing import OneVar
from det_testing.fakes import STATE_FILE, OwnedAdapter, OwnedOneVar, Scalar, Together, Training


class RealTrial(OwnedOneVar):
    """What a user may write beside the model.

    One that `bypasses` the framework steps by the gradients of its own rank.
    """

    buffered = bypasses = False

    def learning_rate(self, lr: float, batch: int) -> float:
        return lr

    def training_ends(self, training: Training) -> None:
        pass


class Buffered(RealTrial):
    """Takes a running mean of its data from what is to be weighted, where it is validated."""

    buffered = True


class Finishing(RealTrial):
    """Doubles the weight at the end."""

    def training_ends(self, training: Training) -> None:
        training.model.value *= 2


class Scheduled(RealTrial):
    """Lets the learning rate fall to 0; without a length it cannot."""

    def learning_rate(self, lr: float, batch: int) -> float:
        return lr * (1 - batch / self.run.length.n) if self.run.length else lr


@dataclass(frozen=True, kw_only=True)
class Shard(OneVar):
    """Data that gives a rank its own records, and says so by what it is."""

    rank: int = 0
    ranks: int = 1

    def records(self, batch: int) -> list[float]:
        return super().records(batch)[self.rank :: self.ranks]


class Sharded(RealTrial):
    """Has data that deals itself."""

    def build_data(self) -> OneVar:
        ranks = self.run.distributed
        return Shard.of({**self.run.hparams, "rank": ranks.rank, "ranks": ranks.size})


class Stream(OneVar):
    """Data whose end is not known before it comes."""


class Streamed(RealTrial):
    """Has data without length."""

    def build_data(self) -> OneVar:
        return Stream.of(self.run.hparams)


class Bypassing(RealTrial):
    """Steps by its own rank's gradients."""

    bypasses = True


OF_FAKES: dict[str, type] = {
    "buffered": Buffered,
    "finishing": Finishing,
    "scheduled": Scheduled,
    "sharded": Sharded,
    "streamed": Streamed,
    "bypassing": Bypassing,
}


class Unreduced(Together):
    """Ranks that talk, but leave gradients as they are."""

    def mean(self, value: float) -> float:
        return value


class RealTraining(Training):
    """Trains with statistics, schedules, and data of which the ranks have their shares."""

    def __init__(self, trial: RealTrial) -> None:
        super().__init__(trial)
        self.trial, self.lr, self.mean = trial, self.data.lr, 0.0 if trial.buffered else None
        if trial.bypasses:
            self.together = Unreduced.join(trial.run.distributed)

    def batch(self, number: int) -> dict[str, Scalar]:
        self.data = replace(self.data, lr=self.trial.learning_rate(self.lr, number))
        metrics = super().batch(number)
        if self.mean is not None:
            records = self._mine(self.data.records(number))
            self.mean += (sum(records) / len(records) - self.mean) / 2
        return metrics

    def validate(self) -> Metrics:
        """Let each rank take every n-th batch of two records."""
        records, ranks = self.data.validation_records(), self.together.ranks
        mine = [
            self.loss(records[at : at + 2])
            for at in range(2 * ranks.rank, len(records), 2 * ranks.size)
        ]
        return {**super().validate(), "val_loss": self.mean_of(mine)}

    def mean_of(self, losses: list[float]) -> Scalar:
        """Return the mean of the losses that all ranks have."""
        gathered = [loss for share in self.together.allgather(losses) for loss in share]
        return Scalar(sum(gathered) / len(gathered))

    def loss(self, records: list[float]) -> float:
        """Return the mean over records that are their own labels."""
        errors = [x - self.model.value * (x - (self.mean or 0.0)) for x in records]
        return sum(error**2 for error in errors) / len(errors)

    def _mine(self, records: list[float]) -> list[float]:
        return records if isinstance(self.data, Shard) else super()._mine(records)


class RealAdapter(OwnedAdapter):
    """Keeps all that the suite asks of an adapter."""

    training: RealTraining

    def __init__(self, trial: Any) -> None:
        self.trial, self.training = trial, RealTraining(trial)

    def validate(self) -> Metrics:
        return self.training.validate()

    def finish(self) -> None:
        self.trial.training_ends(self.training)

    def synchronize(self) -> None:
        self.training.mean = self.training.together.broadcast(self.training.mean)

    def fingerprint(self) -> str:
        return repr(self.training.model.value)

    def save(self, path: Path) -> None:
        super().save(path)
        state = json.loads((path / STATE_FILE).read_text())
        (path / STATE_FILE).write_text(json.dumps({**state, "mean": self.training.mean}))

    def load(self, path: Path) -> None:
        super().load(path)
        self.training.mean = json.loads((path / STATE_FILE).read_text())["mean"]

    @property
    def batches_per_epoch(self) -> int | None:
        return (
            None if isinstance(self.training.data, Stream) else self.training.data.batches_per_epoch
        )


def evaluate(trial: type, path: Path, settings: OneVar) -> dict[str, float]:
    """Read what lies in a checkpoint, and validate."""
    state = json.loads((path / STATE_FILE).read_text())
    return _validated(state["weight"], state["mean"] or 0.0, settings)


def plain(trial: type, settings: OneVar, batches: int) -> tuple[list[float], dict[str, float]]:
    """Train a model of one weight."""
    weight, mean, losses = 0.0, 0.0, []
    for batch in range(batches):
        records = settings.records(batch)
        errors = [(1.0 - weight) * x for x in records]
        losses.append(sum(error**2 for error in errors) / len(records))
        lr = settings.lr * (1 - batch / batches) if trial is Scheduled else settings.lr
        weight -= lr * (
            sum(-2 * x * error for x, error in zip(records, errors, strict=True)) / len(records)
        )
        if trial is Buffered:
            mean += (sum(records) / len(records) - mean) / 2
    return losses, _validated(2 * weight if trial is Finishing else weight, mean, settings)


def _validated(weight: float, mean: float, settings: OneVar) -> dict[str, float]:
    records = settings.validation_records()
    return {
        "val_loss": sum((x - weight * (x - mean)) ** 2 for x in records) / len(records),
        "weight": weight,
    }
