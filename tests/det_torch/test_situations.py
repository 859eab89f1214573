"""Situations from public trackers of PyTorch, listed in docs/development/situations.md.

A run that is cut and resumed ends as one that is left alone, and as PyTorch alone would.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.det_torch.test_whole_state import (
    SCHEDULE,
    Net,
    Whole,
    X,
    Y,
    contents_of,
    goes_on_alike,
    has_weights,
    plain,
)
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

from det_core import Every, Schedule, TrialError
from det_torch import LRScheduler


def step(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
    """Train a batch as PyTorch's tutorials do."""
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


class TensorRate(Whole):
    """Its learning rate is a tensor. Behind a milestone another schedule takes over."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.wrap_lr_scheduler(self.rates(self.optimizer), LRScheduler.StepMode.STEP_EVERY_BATCH)

    def steps(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))

    @staticmethod
    def rates(optimizer: torch.optim.Optimizer) -> SequentialLR:
        first = LinearLR(optimizer, start_factor=0.1, total_iters=3)
        second = CosineAnnealingLR(optimizer, T_max=10)
        return SequentialLR(optimizer, [first, second], milestones=[4])


def test_a_rate_that_is_a_tensor_goes_on(lab: Any) -> None:
    whole = goes_on_alike(lab, TensorRate, [3, 4, 6], length=8)
    schedules: list[Any] = []

    def scheduled(model: Any, optimizer: Any, batch: Any, number: int) -> Any:
        if not schedules:
            schedules.append(TensorRate.rates(optimizer))
        loss = step(model, optimizer, batch, number)
        schedules[0].step()
        return loss

    losses, weights = plain(TensorRate, 8, scheduled)
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_the_step_count_of_a_fused_optimizer_goes_on(lab: Any, kind: str) -> None:
    class Fused(Whole):
        def steps(self, model: nn.Module) -> torch.optim.Optimizer:
            if kind == "SGD":
                return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
            return torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True, fused=True)

    whole = goes_on_alike(lab, Fused, [2, 6], length=8)
    losses, weights = plain(Fused, 8, step)
    assert whole.losses == losses
    assert has_weights(lab, whole, weights)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("older", [False, True])
def test_evaluations_do_not_change_normalized_weights(lab: Any, older: bool) -> None:
    """By hooks of modules, and by parametrizations."""
    if older:
        spectral, weight = nn.utils.spectral_norm, nn.utils.weight_norm
    else:
        spectral = nn.utils.parametrizations.spectral_norm
        weight = nn.utils.parametrizations.weight_norm

    class Normalized(Whole):
        def build(self) -> nn.Module:
            return nn.Sequential(spectral(nn.Linear(6, 5)), nn.Tanh(), weight(nn.Linear(5, 1)))

    often = Schedule(report=Every(1), validate=Every(2), validate_first=True, policy="none")
    whole = goes_on_alike(lab, Normalized, [3, 6], length=8, schedule=SCHEDULE)
    measured = goes_on_alike(lab, Normalized, [3, 6], length=8, schedule=often)
    losses, _ = plain(Normalized, 8, step)
    assert whole.losses == measured.losses == losses


def test_a_model_that_the_trial_compiled_needs_it_compiled(lab: Any) -> None:
    class Compiled(Whole):
        def build(self) -> nn.Module:
            compiled: Any = torch.compile(Net(), backend="eager")
            return compiled

    saved = lab(Compiled, 2, schedule=SCHEDULE).checkpoints[2]
    assert all(
        name.startswith("_orig_mod.") for name in contents_of(lab, saved)["models_state_dict"][0]
    )
    with pytest.raises(TrialError, match=r'does not fit the trial\'s model: .*"backbone.weight"'):
        lab(Whole, 4, checkpoint=saved)


class Divided(IterableDataset[Any]):
    """Each worker reads its share, with noise from NumPy's global generator."""

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Any:
        worker = get_worker_info()
        assert worker is not None
        for index in range(worker.id, 24, worker.num_workers):
            yield X[index] + float(np.random.rand()), Y[index]


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:the training data .* has no state_dict")
def test_workers_of_an_iterable_draw_other_numbers_each_time(lab: Any) -> None:
    drawn: list[torch.Tensor] = []

    class Reading(Whole):
        def build_training_data_loader(self) -> Any:
            return TorchDataLoader(Divided(), 4, num_workers=2)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            drawn.append(batch[0])
            return super().train_batch(batch, epoch_idx, batch_idx)

    goes_on_alike(lab, Reading, [4, 8], length=12)
    shifts = [batch - X for whole in drawn[:12] for batch in whole]
    noise = {round(float(each[each.std(1).argmin()].mean()), 5) for each in shifts}
    assert len(noise) == 48


class Sparse(Whole):
    """Embeds records and steps the embedding by `SparseAdam`. Every third batch is padding."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.table = context.wrap_model(nn.Embedding(24, 6, sparse=True, padding_idx=0))
        self.model = context.wrap_model(Net())
        self.first = context.wrap_optimizer(
            torch.optim.SparseAdam(list(self.table.parameters()), lr=0.01)
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        words = torch.arange(4) + 4 * (batch_idx % 6) if batch_idx % 3 else torch.zeros(4).long()
        loss = nn.functional.mse_loss(self.model(self.table(words)), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.first)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


def test_a_sparse_optimizer_goes_on_beside_another(lab: Any) -> None:
    whole = goes_on_alike(lab, Sparse, [3, 4, 6], length=8)
    torch.manual_seed(1)
    table, model = nn.Embedding(24, 6, sparse=True, padding_idx=0), Net()
    sparse = torch.optim.SparseAdam(list(table.parameters()), lr=0.01)
    other = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = {}
    for number in range(8):
        at = number * 4 % 24
        words = torch.arange(4) + at if number % 3 else torch.zeros(4).long()
        loss = nn.functional.mse_loss(model(table(words)), Y[at : at + 4])
        loss.backward()
        for optimizer in (sparse, other):
            optimizer.step()
            optimizer.zero_grad()
        losses[number + 1] = loss.item()
    assert whole.losses == losses
