"""Learning-rate schedulers: when each is stepped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, SequentialLR, StepLR

from det_core import Every, Schedule, TrialError
from det_torch import LRScheduler
from det_torch.testing import OneVarTrial

EPOCH, BATCH = LRScheduler.StepMode.STEP_EVERY_EPOCH, LRScheduler.StepMode.STEP_EVERY_BATCH
OPTIMIZER, MANUAL = LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP, LRScheduler.StepMode.MANUAL_STEP

# In twelve batches, five to an epoch: how many steps the scheduler has made behind each batch.
TABLE = {
    (EPOCH, 1, 1): [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2],
    (EPOCH, 2, 1): [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
    (BATCH, 1, 1): [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    (BATCH, 5, 1): [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2],
    (OPTIMIZER, 1, 1): [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    (OPTIMIZER, 3, 1): [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4],
    (MANUAL, 1, 1): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    # Gradients of 4 batches are aggregated: optimizers step behind batches 4, 8 and 12.
    (BATCH, 1, 4): [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12],
    (BATCH, 3, 4): [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 4],
    (OPTIMIZER, 1, 4): [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3],
    (OPTIMIZER, 2, 4): [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1],  # Determined steps behind 4, 8 and 12
    (OPTIMIZER, 3, 4): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    # An epoch is over once the optimizers' next step lies in a later one: behind 4, whose next is 8, and behind 8.
    (EPOCH, 1, 4): [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3],
    (EPOCH, 2, 4): [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
    # With 7 the steps are behind 7, whose next is 14: epochs 1 and 2 are over at once.
    (EPOCH, 1, 7): [0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2],
    (EPOCH, 1, 12): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4],
}


def stepped(mode: LRScheduler.StepMode, frequency: int, seen: list[int]) -> type[OneVarTrial]:
    """Return a trial whose scheduler counts its steps into `seen`, before each batch."""

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.scheduler = context.wrap_lr_scheduler(LambdaLR(self.optimizer, lambda n: 1.0), mode, frequency)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append(self.scheduler.last_epoch)
            return super().train_batch(batch, epoch_idx, batch_idx)

    return Trial


@pytest.mark.parametrize(("mode", "frequency", "aggregation"), list(TABLE))
def test_a_scheduler_is_stepped_exactly_when_its_mode_says(
    lab: Any, mode: LRScheduler.StepMode, frequency: int, aggregation: int
) -> None:
    seen: list[int] = []
    lab(stepped(mode, frequency, seen), 13, config={"optimizations": {"aggregation_frequency": aggregation}})
    assert seen[1:] == TABLE[mode, frequency, aggregation]


def test_a_resumed_scheduler_goes_on_where_it_was(lab: Any) -> None:
    """With aggregation, from between two steps."""
    aggregation = {"optimizations": {"aggregation_frequency": 4}}
    first = lab(stepped(BATCH, 3, []), 6, config=aggregation)
    seen: list[int] = []
    lab(stepped(BATCH, 3, seen), 13, config=aggregation, checkpoint=first.checkpoints[6])
    assert seen == TABLE[BATCH, 3, 4][5:]


def test_learning_rates_follow_the_schedule(lab: Any) -> None:
    """Each batch is trained with the rate that its epoch has."""
    rates: list[float] = []

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_lr_scheduler(StepLR(self.optimizer, step_size=1, gamma=0.5), EPOCH)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            rates.append(self.context.lr_schedulers[0].get_last_lr()[0])
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(
        Trial,
        7,
        hparams={"global_batch_size": 2, "batches_per_epoch": 3, "lr": 0.01},
        schedule=Schedule(report=Every(7)),
    )
    assert rates == pytest.approx([0.01] * 3 + [0.005] * 3 + [0.0025])


def test_a_manual_scheduler_is_the_trials_to_step(lab: Any) -> None:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            plateau = ReduceLROnPlateau(self.optimizer, factor=0.1, patience=0)
            self.scheduler = context.wrap_lr_scheduler(plateau, MANUAL)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            self.scheduler.step(1.0)
            return {**metrics, "lr": self.optimizer.param_groups[0]["lr"]}

    ran = lab(Trial, 3, hparams={"global_batch_size": 2, "lr": 0.01})
    assert [metrics["lr"] for metrics in ran.training.values()] == pytest.approx([0.01, 0.001, 0.0001])
    again = lab(Trial, 4, hparams={"global_batch_size": 2, "lr": 0.01}, checkpoint=ran.checkpoints[3])
    assert again.training[4]["lr"] == pytest.approx(0.00001)


def test_data_without_a_length_ends_no_epoch_and_that_is_said(lab: Any) -> None:
    class Trial(stepped(EPOCH, 1, [])):  # type: ignore[misc]
        def build_training_data_loader(self) -> Any:
            while True:
                yield torch.ones(2, 1)

    with pytest.warns(UserWarning, match="to be stepped every epoch, but the training data has no length"):
        lab(Trial, 2)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize("mode", [EPOCH, BATCH, OPTIMIZER])
def test_a_scheduler_that_needs_a_metric_is_manual_only(mode: LRScheduler.StepMode) -> None:
    with pytest.raises(TrialError, match=r"ReduceLROnPlateau needs a metric.*MANUAL_STEP"):
        LRScheduler(ReduceLROnPlateau(optimizer()), mode)


@pytest.mark.parametrize("frequency", [0, -1, 1.5, True])
def test_a_frequency_is_a_whole_number_of_1_or_more(frequency: Any) -> None:
    with pytest.raises(TrialError, match=rf"frequency is {frequency!r}; give a whole number of 1 or more"):
        LRScheduler(StepLR(optimizer(), 1), BATCH, frequency)


def test_a_step_mode_is_one_of_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"step_mode is 'epoch'; give one of LRScheduler\.StepMode"):
        LRScheduler(StepLR(optimizer(), 1), "epoch")  # type: ignore[arg-type]


def test_the_wrapper_passes_on_to_the_scheduler() -> None:
    of_mine = optimizer()
    scheduler = LRScheduler(StepLR(of_mine, 1, gamma=0.5), MANUAL)
    of_mine.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]
    again = LRScheduler(StepLR(optimizer(), 1, gamma=0.5), MANUAL)
    again.load_state_dict(scheduler.state_dict())
    assert again.scheduler.last_epoch == 1


def test_a_scheduler_of_schedulers_is_resumed(lab: Any) -> None:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            parts = [LambdaLR(self.optimizer, lambda n: 0.5), StepLR(self.optimizer, 1, gamma=0.5)]
            context.wrap_lr_scheduler(SequentialLR(self.optimizer, parts, milestones=[3]), BATCH)

    whole = lab(Trial, 8)
    first = lab(Trial, 5)
    assert lab(Trial, 8, checkpoint=first.checkpoints[5]).losses[8] == whole.losses[8]
