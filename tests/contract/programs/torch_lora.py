"""Low-rank adapters and a new head on an encoder that is frozen and stays in evaluation mode."""

from __future__ import annotations

from typing import Any

import torch
from tests.contract.programs.suite import Outcome
from tests.contract.programs.torch_parts import EpochShuffle, digits, seed_everything, train
from torch import nn
from torch.nn import functional as F

from det_torch import DataLoader, PyTorchTrial

BATCH = 8


class LowRank(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


class Tuned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        body = [
            nn.Linear(64, 32),
            nn.BatchNorm1d(32),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(32, 16),
        ]
        self.encoder = nn.Sequential(*body).requires_grad_(False)
        for number in (0, 4):
            self.encoder[number] = LowRank(self.encoder[number])
        self.head = nn.Linear(16, 10)
        # So that two ranks differ from one by rounding only, also after steps of Adam.
        self.double()

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.encoder(x.double())))


def steps(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def measures(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    scores = model(images)
    return {
        "val_loss": F.cross_entropy(scores, labels),
        "accuracy": (scores.argmax(1) == labels).double().mean(),
    }


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(Tuned())
        self.optimizer = context.wrap_optimizer(steps(self.model))

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return DataLoader(digits(0, 56), size, sampler=EpochShuffle(56), drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(digits(100, 24), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return measures(self.model, *batch)


def plain() -> Outcome:
    seed_everything()
    model = Tuned()
    optimizer = steps(model)

    def step(batch: Any, number: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train(
        [model], digits(0, 56), digits(100, 24), BATCH, step, lambda batch: measures(model, *batch)
    )
