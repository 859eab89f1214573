"""Contrastive learning with a queue of keys and a teacher that averages the student's weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tests.contract.programs.suite import Outcome
from tests.contract.programs.torch_parts import EpochShuffle, digits, seed_everything, train
from torch import nn
from torch.nn import functional as F

from det_torch import DataLoader, PyTorchTrial

BATCH = 8
TWO_RANKS = (0.8, "each rank has a queue of its own")


class Contrastive(nn.Module):
    def __init__(self, queued: int = 24) -> None:
        super().__init__()
        self.student = nn.Sequential(
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queued, 8), dim=1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of one view against the teacher's keys of the other, and these keys."""
        queries = F.normalize(self.student(one), dim=1)
        with torch.no_grad():
            keys = F.normalize(self.teacher(other), dim=1)
        same = (queries * keys).sum(1, keepdim=True)
        scores = torch.cat([same, queries @ self.queue.clone().T], dim=1) / 0.2
        return F.cross_entropy(scores, torch.zeros(len(one), dtype=torch.long)), keys

    @torch.no_grad()
    def follow(self, keys: torch.Tensor) -> None:
        """Let the teacher follow, and put keys into the queue, in the place of the oldest."""
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
        places = (self.place + torch.arange(len(keys))) % len(self.queue)
        self.queue[places] = keys
        self.place.copy_((self.place + len(keys)) % len(self.queue))


def view(images: torch.Tensor) -> torch.Tensor:
    """Return the images with noise and without some of their pixels."""
    return F.dropout(images + 0.1 * torch.randn_like(images), 0.2)


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(Contrastive())
        steps = torch.optim.SGD(self.model.student.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = context.wrap_optimizer(steps)

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return DataLoader(digits(0, 56), size, sampler=EpochShuffle(56), drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(digits(100, 24), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        images, _ = batch
        loss, keys = self.model(view(images), view(images))
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.model.follow(keys)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": self.model(batch[0], batch[0])[0]}


def plain() -> Outcome:
    seed_everything()
    model = Contrastive()
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9)

    def step(batch: Any, number: int) -> dict[str, torch.Tensor]:
        images, _ = batch
        loss, keys = model(view(images), view(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.follow(keys)
        return {"loss": loss}

    def evaluate(batch: Any) -> dict[str, torch.Tensor]:
        return {"val_loss": model(batch[0], batch[0])[0]}

    return train([model], digits(0, 56), digits(100, 24), BATCH, step, evaluate)
