"""The one-weight model in PyTorch with what real models have.

The same is trained and evaluated by PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import IterableDataset

from det_testing import OneVar
from det_torch import DataLoader, LRScheduler, PyTorchCallback
from det_torch.testing import OneVarTrial


class Normalized(torch.nn.Linear):
    """Weights what a batch normalisation leaves of the data."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        torch.nn.init.zeros_(self.weight)
        self.norm = torch.nn.BatchNorm1d(1, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


class Buffered(OneVarTrial):
    """Has running statistics, which each rank takes from its own records."""

    @staticmethod
    def build_model() -> torch.nn.Module:
        return Normalized()


class Doubling(PyTorchCallback):
    """Has the last word on the weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def on_training_end(self) -> None:
        doubled(self.model)


class Finishing(OneVarTrial):
    """Doubles the weight when training ends."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"doubling": Doubling(self.model)}


class Scheduled(OneVarTrial):
    """Lets the learning rate fall to 0 at the trial's length."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        falling = falls(self.optimizer, context.run.length.n)
        context.wrap_lr_scheduler(falling, LRScheduler.StepMode.STEP_EVERY_BATCH)


class Stream(IterableDataset[torch.Tensor]):
    """Records in their order, of all ranks."""

    def __init__(self, settings: OneVar) -> None:
        self.settings = settings

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in range(self.settings.batches_per_epoch):
            yield from (torch.tensor([x]) for x in self.dealt(self.settings.records(batch)))

    def dealt(self, records: list[float]) -> list[float]:
        return records


class Streamed(OneVarTrial):
    """Reads a stream."""

    def build_training_data_loader(self) -> Any:
        return DataLoader(Stream(self.settings), batch_size=self.context.get_per_slot_batch_size())


class Share(Stream):
    """The records of one rank, r-th n-th of each batch, which says that it deals them."""

    det_sharded = True

    def __init__(self, settings: OneVar, ranks: Any) -> None:
        super().__init__(settings)
        self.ranks = ranks

    def dealt(self, records: list[float]) -> list[float]:
        return records[self.ranks.rank :: self.ranks.size]


class Sharded(OneVarTrial):
    """Reads a stream of its rank's own."""

    def build_training_data_loader(self) -> Any:
        data = Share(self.settings, self.context.distributed)
        return DataLoader(data, batch_size=self.context.get_per_slot_batch_size())


class Bypassing(OneVarTrial):
    """Trains as every tutorial does."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = ((batch - self.model(batch)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}


VARIANTS: dict[str, type] = {
    "buffered": Buffered,
    "finishing": Finishing,
    "scheduled": Scheduled,
    "sharded": Sharded,
    "streamed": Streamed,
    "bypassing": Bypassing,
}


def doubled(model: torch.nn.Module) -> None:
    """Do what is done at the end of training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)


def falls(optimizer: torch.optim.Optimizer, length: int) -> LambdaLR:
    """Return the schedule of `Scheduled`."""
    return LambdaLR(optimizer, lambda batch: 1 - batch / length)


def evaluate(trial: type[OneVarTrial], path: Path, settings: OneVar) -> dict[str, float]:
    """Load the weights of a checkpoint, and validate."""
    model = trial.build_model()
    found = torch.load(path / "state_dict.pth", weights_only=True)["models_state_dict"]
    model.load_state_dict(found[0])
    return validated(model, settings)


def plain(
    trial: type[OneVarTrial], settings: OneVar, batches: int
) -> tuple[list[float], dict[str, float]]:
    """Train by a loop as PyTorch's own documentation has it."""
    model, losses = trial.build_model().train(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    schedule = falls(optimizer, batches if trial is Scheduled else 1)
    for number in range(batches):
        batch = torch.tensor(settings.records(number)).reshape(-1, 1)
        loss = ((batch - model(batch)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if trial is Scheduled:
            schedule.step()
        losses.append(loss.item())
    if trial is Finishing:
        doubled(model)
    return losses, validated(model, settings)


def validated(model: torch.nn.Module, settings: OneVar) -> dict[str, float]:
    """Return what the trial reports."""
    model.eval()
    losses = []
    with torch.no_grad():
        for pair in torch.tensor(settings.validation_records()).reshape(-1, 2, 1):
            losses.append(((pair - model(pair)) ** 2).mean().item())
    return {"val_loss": sum(losses) / len(losses), "weight": next(model.parameters()).item()}
