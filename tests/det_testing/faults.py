"""Adapters with one fault each, of those that a model of one weight does not show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.det_testing.variants import RealAdapter, RealTraining, Shard, Stream

from det_core import Metrics, RunInfo
from det_testing.fakes import Scalar


class DriftingStatistics(RealAdapter):
    """Saves the chief's running mean, while each rank validates with its own."""

    def synchronize(self) -> None:
        pass


class ShortRankValidatesAgain(RealAdapter):
    """Lets a rank that has fewer batches than another begin again, so that all have as many."""

    def validate(self) -> Metrics:
        training = self.training
        records, ranks = training.data.validation_records(), training.together.ranks
        count = -(-len(records) // (2 * ranks.size))
        starts = [2 * (ranks.rank + n * ranks.size) for n in range(count)]
        mine = [training.loss(records[at : at + 2] or records[:2]) for at in starts]
        if len(records) <= 2 * ranks.size:
            return training.validate()
        return {**training.validate(), "val_loss": training.mean_of(mine)}


class ValidatesTheFirstBatch(RealAdapter):
    """Takes the first validation batch for the whole set."""

    def validate(self) -> Metrics:
        return {**super().validate(), "val_loss": Scalar(self.training.loss([1.0, 2.0]))}


class ShardsAgain(RealAdapter):
    """Deals data to the ranks, whatever it says."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        self.training._mine = self._dealt  # type: ignore[method-assign]

    def _dealt(self, records: list[float]) -> list[float]:
        dealt, ranks = RealTraining._mine(self.training, records), self.training.together.ranks.size
        return dealt[: len(records) // ranks] if isinstance(self.training.data, Shard) else dealt


class ReadsAStreamOnEachRank(RealAdapter):
    """Deals what has a length only."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        self.training._mine = self._dealt  # type: ignore[method-assign]

    def _dealt(self, records: list[float]) -> list[float]:
        share = len(records) // self.training.together.ranks.size
        return (
            records[:share]
            if isinstance(self.training.data, Stream)
            else RealTraining._mine(self.training, records)
        )


class NeverFinishes(RealAdapter):
    def finish(self) -> None:
        pass


class FinishesBeforeEachSave(RealAdapter):
    """Ends training where a run does, like one whose framework's `fit` returns at a preemption."""

    def finish(self) -> None:
        self._ended = True
        super().finish()

    def save(self, path: Path) -> None:
        if not getattr(self, "_ended", False):
            super().finish()
        super().save(path)


class FinishesNoRunThatGoesOn(RealAdapter):
    """Takes a trial that was interrupted for one that is over."""

    def load(self, path: Path) -> None:
        super().load(path)
        self.finish = lambda: None  # type: ignore[method-assign]


class KnowsNoLength(RealAdapter):
    @classmethod
    def create(cls, trial: Any, run: RunInfo) -> Any:
        return super().create(trial, replace(run, length=None))


class ComparesNoWeights(RealAdapter):
    def fingerprint(self) -> str:
        return ""


class SavesAnotherWeight(RealAdapter):
    """Keeps what only its own `load` turns into the weight that was validated."""

    def save(self, path: Path) -> None:
        self.training.model.value *= 2
        super().save(path)
        self.training.model.value /= 2

    def load(self, path: Path) -> None:
        super().load(path)
        self.training.model.value /= 2


class TrainsAlmostAlike(RealAdapter):
    """Has a learning rate that is off by less than the kit's tolerance."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial)
        self.training.lr *= 1 + 1e-9
