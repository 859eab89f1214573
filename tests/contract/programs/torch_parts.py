"""What the PyTorch programs share: shuffling by epoch, the loops around a step, data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from tests.contract.programs.suite import LENGTH, SEED, Outcome, is_validated, mean
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset


class EpochShuffle(Sampler[int]):
    """Shuffles by the number of the epoch, as `DistributedSampler` does."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(100 + self.epoch)
        return iter(torch.randperm(self.count, generator=generator).tolist())


def seed_everything() -> None:
    """Seed as a trial is seeded."""
    torch.manual_seed(SEED)


def train(
    models: list[nn.Module],
    data: Dataset[Any],
    held_out: Dataset[Any],
    size: int,
    step: Callable[[Any, int], dict[str, torch.Tensor]],
    evaluate: Callable[[Any], dict[str, torch.Tensor]],
) -> Outcome:
    """Train and validate by the loops of PyTorch's tutorials."""
    sampler = EpochShuffle(len(data))  # type: ignore[arg-type]
    # A loader draws a seed for its workers in each epoch; this one leaves the global generator
    # alone.
    own = torch.Generator()
    loader = DataLoader(data, size, sampler=sampler, drop_last=True, generator=own)
    held = DataLoader(held_out, size, generator=own)
    training: list[dict[str, float]] = []
    validation: dict[int, dict[str, float]] = {}
    epoch = 0
    while len(training) < LENGTH:
        sampler.set_epoch(epoch)
        for batch in loader:
            for model in models:
                model.train()
            metrics = step(batch, len(training))
            training.append({name: value.item() for name, value in metrics.items()})
            if is_validated(len(training)):
                for model in models:
                    model.eval()
                with torch.no_grad():
                    rows = [evaluate(batch) for batch in held]
                validation[len(training)] = mean(
                    [{name: x.item() for name, x in row.items()} for row in rows]
                )
            if len(training) == LENGTH:
                break
        epoch += 1
    weights = {
        f"{number}.{name}": value.clone()
        for number, model in enumerate(models)
        for name, value in model.state_dict().items()
    }
    return Outcome(training, validation, weights)


def digits(first: int, count: int) -> Dataset[Any]:
    """Return some of scikit-learn's digits, of 8 by 8 pixels."""
    images, labels = load_digits(return_X_y=True)
    chosen = slice(first, first + count)
    return TensorDataset(
        torch.tensor(images[chosen] / 16, dtype=torch.float32), torch.tensor(labels[chosen])
    )
