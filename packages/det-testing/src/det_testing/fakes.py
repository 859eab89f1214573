"""A plugin without a framework, whose loop it owns, and which is whole: a trial class, an adapter, hooks (`fake_hooks`).

Its numbers are Python's.
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

from det_core.adapter import Adapter, Loop, Metrics, RunInfo
from det_core.backend import Communicator, Serial
from det_core.distributed import DistributedContext

from ._onevar import OneVar

STATE_FILE = "state.json"


@dataclass
class Weight:
    """A model of one number, with the gradients gathered for it and an optimizer's learning rate."""

    value: float = 0.0
    gradients: list[float] = field(default_factory=list)


class Scalar:
    """A number that is still on a device: it is fetched by `item`."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


class FakeTrial:
    """What a user of a fake framework writes, for the kit's one-weight model."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run

    def build_model(self) -> Weight:
        return Weight()

    def build_data(self) -> OneVar:
        return OneVar.of(self.run.hparams)


class OwnedTrial(FakeTrial):
    """A trial of the framework whose loop the plugin owns."""


class OwnedOneVar(OwnedTrial):
    """A user's class of such trials."""


F = TypeVar("F", bound=FakeTrial)


class Together(Serial):
    """The collectives of the fakes: of several ranks those that core's own connections have, which have met already."""

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
    """One trial's training as a framework would do it: a batch at a time, from random numbers of its own on each rank."""

    def __init__(self, trial: FakeTrial) -> None:
        run, config = trial.run, trial.run.config
        self.together: Together = run.backend.load().join(run.distributed) if run.backend else Together()  # type: ignore[assignment]
        self.together.init()
        rank = self.together.ranks.rank
        self.random = random.Random(f"{run.seed}/{rank}" if rank else run.seed)
        self.seed = run.seed
        self.model: Weight = run.build.model(trial, trial.build_model)
        self.data: OneVar = run.build.data_loader(trial, trial.build_data, "training")
        self.aggregation = config.optimizations.aggregation_frequency if config else 1

    def batch(self, number: int) -> dict[str, Scalar]:
        """Train the batch with that number, counted from the trial's start."""
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
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order[batch]


class FakeAdapter(Adapter[F], ABC):
    """All of a fake adapter but its loop."""

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
        of_ranks = self.training.together.allgather([[version, list(numbers), gauss], model.gradients])
        (path / STATE_FILE).write_text(json.dumps({"weight": model.value, "ranks": of_ranks}))

    def load(self, path: Path) -> None:
        state = json.loads((path / STATE_FILE).read_text())
        self.training.model.value = state["weight"]
        of_ranks, rank = state["ranks"], self.training.together.ranks.rank
        if rank < len(of_ranks):  # of fewer ranks: a new one begins its own numbers
            (version, numbers, gauss), self.training.model.gradients = of_ranks[rank]
            self.training.random.setstate((version, tuple(numbers), gauss))

    @property
    def batches_per_epoch(self) -> int:
        return self.training.data.batches_per_epoch

    @property
    def global_batch_size(self) -> int:
        return self.training.data.global_batch_size


class OwnedAdapter(FakeAdapter[OwnedTrial]):
    """The plugin writes the `for`."""

    def train(self, loop: Loop) -> None:
        for number in loop.batches(count(loop.done)):
            loop.step(self.training.batch(number))
