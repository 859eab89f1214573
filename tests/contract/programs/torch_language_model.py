"""A language model whose output layer has the weights of its embedding.

It trains with accumulated gradients and a warm-up.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.contract.programs.suite import Outcome
from tests.contract.programs.torch_parts import EpochShuffle, seed_everything, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from det_torch import DataLoader, LRScheduler, PyTorchTrial

BATCH = 8
ACCUMULATED = 3
OPTIMIZATIONS = {"aggregation_frequency": ACCUMULATED}
TEXT = (
    "a run that is killed goes on from its checkpoint as if it had been left alone, bit for bit; "
)
LETTERS = sorted(set(TEXT))


def lines(count: int, first: int) -> Dataset[Any]:
    """Return pieces of the text, of 12 letters and the next one."""
    codes = [LETTERS.index(letter) for letter in TEXT * 4]
    return TensorDataset(
        torch.tensor([codes[start : start + 13] for start in range(first, first + count)])
    )


class Language(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(0.02 * torch.randn(12, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, len(LETTERS), bias=False)
        self.head.weight = self.embed.weight
        # So that two ranks differ from one by rounding only, also after steps of Adam.
        self.double()

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(12, dtype=torch.float64)
        return self.head(
            self.layer(self.embed(letters) + self.places, src_mask=mask, is_causal=True)
        )


def losses(model: nn.Module, letters: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """Raise the learning rate over four steps, then let it fall with the root."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / 4, (4 / (n + 1)) ** 0.5)
    )


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(Language())
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))
        context.wrap_lr_scheduler(
            warm_up(self.optimizer), LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
        )

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return DataLoader(lines(56, 0), size, sampler=EpochShuffle(56), drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(lines(16, 100), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = losses(self.model, *batch)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": losses(self.model, *batch)}


def plain() -> Outcome:
    seed_everything()
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = warm_up(optimizer)

    def step(batch: Any, number: int) -> dict[str, torch.Tensor]:
        loss = losses(model, *batch)
        loss.backward()
        if (number + 1) % ACCUMULATED == 0:
            for parameter in model.parameters():
                parameter.grad /= ACCUMULATED
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return {"loss": loss}

    return train(
        [model],
        lines(56, 0),
        lines(16, 100),
        BATCH,
        step,
        lambda batch: {"val_loss": losses(model, *batch)},
    )
