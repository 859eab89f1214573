"""Parts of a trial in a checkpoint: what does not fit is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from det_core import TrialError
from det_testing import OneVar
from det_torch import LRScheduler
from det_torch.testing import OneVarTrial


def sized(width: int, layers: int = 1) -> type[OneVarTrial]:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.more = context.wrap_model(
                nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
            )

    return Trial


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            sized(3),
            (
                "the checkpoint does not fit the trial's model: size mismatch for 0.weight: copying"
                " a param with shape torch.Size([2, 2]) from checkpoint, the shape in current model"
                " is torch.Size([3, 3]) (and 1 more)"
            ),
        ),
        (
            sized(2, layers=2),
            (
                "the checkpoint does not fit the trial's model: Missing key(s) in state_dict:"
                ' "1.weight", "1.bias"'
            ),
        ),
        (OneVarTrial, "the trial has 1 model, but the checkpoint holds 2; it is of another trial"),
    ],
)
def test_a_checkpoint_of_another_trial_is_one_sentence(lab: Any, other: type, message: str) -> None:
    first = lab(sized(2), 1)
    with pytest.raises(TrialError) as refusal:
        lab(other, 2, checkpoint=first.checkpoints[1])
    assert str(refusal.value).rstrip(". ") == message
    assert "\n" not in str(refusal.value)


def test_another_number_of_schedulers_is_told(lab: Any) -> None:
    class Scheduled(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_lr_scheduler(StepLR(self.optimizer, 1), LRScheduler.StepMode.MANUAL_STEP)

    first = lab(OneVarTrial, 1)
    with pytest.raises(
        TrialError,
        match="the trial has 1 LR scheduler, but the checkpoint holds 0; it is of another trial",
    ):
        lab(Scheduled, 2, checkpoint=first.checkpoints[1])


def test_an_optimizer_of_other_groups_is_told(lab: Any) -> None:
    class Groups(OneVarTrial):
        def __init__(self, context: Any) -> None:
            self.context, self.settings = context, OneVar()
            self.model = context.wrap_model(nn.Linear(1, 1, bias=False))
            groups = [
                {"params": self.model.parameters()},
                {"params": [nn.Parameter(torch.zeros(1))]},
            ]
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(groups, lr=0.1))

    first = lab(OneVarTrial, 1)
    with pytest.raises(
        TrialError, match=r"the checkpoint does not fit the trial's optimizer: .*parameter groups"
    ):
        lab(Groups, 2, checkpoint=first.checkpoints[1])


def test_momentum_is_part_of_a_checkpoint(lab: Any) -> None:
    class Momentum(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.optimizer = context.wrap_optimizer(
                torch.optim.Adam(self.model.parameters(), lr=0.1)
            )

    whole, first = lab(Momentum, 6), lab(Momentum, 4)
    assert lab(Momentum, 6, checkpoint=first.checkpoints[4]).validation == {6: whole.validation[6]}


def test_a_checkpoint_without_waiting_gradients_holds_none(lab: Any) -> None:
    assert "gradients" not in lab.contents(lab(OneVarTrial, 2).checkpoints[2])


class Freezing(OneVarTrial):
    """Freezes its normalization with the second batch, as fine-tuning does."""

    def __init__(self, context: Any) -> None:
        self.context, self.settings = context, OneVar()
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 1:
            self.model[1].eval()
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize("interrupted", [1, 3])
def test_frozen_module_stays_frozen_in_a_resumed_run(lab: Any, interrupted: int) -> None:
    """Its running means would move on, and the numbers with them."""
    whole = lab(Freezing, 6)
    first = lab(Freezing, 6, preempt_at=interrupted)
    second = lab(Freezing, 6, checkpoint=first.checkpoints[interrupted])
    assert {**first.losses, **second.losses} == whole.losses
    assert second.validation == whole.validation


def test_the_modes_of_another_trials_modules_are_not_taken_over(lab: Any) -> None:
    """A warm start trains from its first batch, in training mode."""
    frozen = lab(Freezing, 6, preempt_at=3).checkpoints[3]
    modes: list[bool] = []

    class Watched(Freezing):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            modes.append(self.model[1].training)
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(Watched, 2, checkpoint=frozen, trial_id=2)
    assert modes == [True, True]
