"""A complete plugin without a framework: a trial class, an adapter and hooks (`fake_hooks`).

The plugin owns the training loop. Its numbers are Python's.
"""

from __future__ import annotations

import json
import random
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from det_core.ranks.backend import Communicator, Serial
from det_core.ranks.distributed import DistributedContext
from det_core.train.adapter import Adapter, Loop, Metrics, RunInfo

from ._onevar import OneVar

STATE_FILE = "state.json"


@dataclass
class Weight:
    """A model of one number, with the gradients that are aggregated for it."""

    value: float = 0.0
    gradients: list[float] = field(default_factory=list)


class Scalar:
    """A number that stands for one on a device. `item` fetches it."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class FakeTrial:
    """The class that a user of a fake framework writes, for the kit's one-weight model."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run

    def build_model(self) -> Weight:
        return Weight()

    def build_data(self) -> OneVar:
        return OneVar.of(self.run.hparams)


class OwnedTrial(FakeTrial):
    """A trial of the fake framework, whose training loop the plugin owns."""


class OwnedOneVar(OwnedTrial):
    """A user's subclass of `OwnedTrial`."""


F = TypeVar("F", bound=FakeTrial)


class Together(Serial):
    """The collectives of the fakes.

    Several ranks use the connections of their `DistributedContext`, which are open already.
    """

    def __init__(self, control: Communicator | None = None) -> None:
        self._control = control or DistributedContext()
        self.ranks = self._control.ranks

    @classmethod
    def join(cls, control: Communicator, optimizations: Any = None) -> Together:
        return cls(control)

    def barrier(self) -> None:
        self._control.barrier()

    def allgather(self, value: Any) -> list[Any]:
        return self._control.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._control.broadcast(value)

    def mean(self, value: float) -> float:
        """Return the mean over the ranks."""
        return value if self.ranks.size == 1 else sum(self.allgather(value)) / self.ranks.size


class Training:
    """The training of one trial as a framework would do it, batch by batch.

    Each rank draws its own random numbers.
    """

    def __init__(self, trial: FakeTrial) -> None:
        run, config = trial.run, trial.run.config
        joined: Any = run.backend.load().join(run.distributed) if run.backend else Together()
        self.together: Together = joined
        self.together.init()
        rank = self.together.ranks.rank
        # It represents the random numbers of a user's trial.
        self.random = random.Random(f"{run.seed}/{rank}" if rank else run.seed)
        self.seed = run.seed
        self.model: Weight = run.build.model(trial, trial.build_model)
        self.data: OneVar = run.build.data_loader(trial, trial.build_data, "training")
        self.aggregation = config.optimizations.aggregation_frequency if config else 1

    def batch(self, number: int) -> dict[str, Scalar]:
        """Train a batch. Its number is counted from the trial's start."""
        records = self._mine(self.data.records(self._record(number)))
        noise = 1 + self.data.noise * self.random.uniform(-1, 1) if self.data.noise else 1.0
        differences = [(noise - self.model.value) * x for x in records]
        slopes = [-2 * x * difference for x, difference in zip(records, differences, strict=True)]
        self.model.gradients.append(sum(slopes) / len(records))
        if len(self.model.gradients) == self.aggregation:
            gradient = self.together.mean(sum(self.model.gradients) / self.aggregation)
            self.model.value -= self.data.lr * gradient
            self.model.gradients.clear()
        return {"loss": Scalar(sum(difference**2 for difference in differences) / len(records))}

    def validate(self) -> Metrics:
        losses = [((1 - self.model.value) * x) ** 2 for x in self.data.validation_records()]
        return {"val_loss": Scalar(sum(losses) / len(losses)), "weight": Scalar(self.model.value)}

    def _mine(self, records: list[float]) -> list[float]:
        """Return this rank's share of a batch."""
        ranks = self.together.ranks
        share = len(records) // ranks.size
        return records[ranks.rank * share : (ranks.rank + 1) * share]

    def _record(self, number: int) -> int:
        if not self.data.shuffle:
            return number
        epoch, batch = divmod(number, self.data.batches_per_epoch)
        order = list(range(self.data.batches_per_epoch))
        # It represents the random numbers of a user's trial.
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order[batch]


class FakeAdapter(Adapter[F], ABC):
    """A fake adapter without its training loop."""

    framework_version = "1.0"

    def __init__(self, trial: F) -> None:
        self.trial = trial
        self.training = Training(trial)

    @classmethod
    def create(cls, trial: type[F], run: RunInfo) -> FakeAdapter[F]:
        return cls(trial(run))

    def validate(self) -> Metrics:
        return self.training.validate()

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        mine, together = super().numbers(rows), self.training.together
        return [{name: together.mean(value) for name, value in row.items()} for row in mine]

    def save(self, path: Path) -> None:
        version, numbers, gauss = self.training.random.getstate()
        model = self.training.model
        of_ranks = self.training.together.allgather(
            [[version, list(numbers), gauss], model.gradients]
        )
        (path / STATE_FILE).write_text(json.dumps({"weight": model.value, "ranks": of_ranks}))

    def load(self, path: Path) -> None:
        state = json.loads((path / STATE_FILE).read_text())
        self.training.model.value = state["weight"]
        of_ranks, rank = state["ranks"], self.training.together.ranks.rank
        # A rank that is not in the checkpoint starts new random numbers.
        if rank < len(of_ranks):
            (version, numbers, gauss), self.training.model.gradients = of_ranks[rank]
            self.training.random.setstate((version, tuple(numbers), gauss))

    @property
    def batches_per_epoch(self) -> int:
        return self.training.data.batches_per_epoch

    @property
    def global_batch_size(self) -> int:
        return self.training.data.global_batch_size


class OwnedAdapter(FakeAdapter[OwnedTrial]):
    """An adapter that owns the training loop."""

    def train(self, loop: Loop) -> None:
        for number in loop.batches(count(loop.done)):
            loop.step(self.training.batch(number))
