"""Learning-rate schedulers: when each is stepped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from det_core import Every, Schedule, TrialError
from det_core.config import Length
from det_torch import DataLoader, LRScheduler
from det_torch.data import epoch_batches
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
    # An epoch is over once the optimizers' next step lies in a later one: behind 4, whose next is
    # 8, and behind 8.
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
            self.scheduler = context.wrap_lr_scheduler(
                LambdaLR(self.optimizer, lambda n: 1.0), mode, frequency
            )

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append(self.scheduler.last_epoch)
            return super().train_batch(batch, epoch_idx, batch_idx)

    return Trial


@pytest.mark.parametrize(("mode", "frequency", "aggregation"), list(TABLE))
def test_a_scheduler_is_stepped_exactly_when_its_mode_says(
    lab: Any, mode: LRScheduler.StepMode, frequency: int, aggregation: int
) -> None:
    seen: list[int] = []
    lab(
        stepped(mode, frequency, seen),
        13,
        config={"optimizations": {"aggregation_frequency": aggregation}},
    )
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


@pytest.mark.parametrize("length", [{"batches": 6}, {"epochs": 2}], ids=str)
def test_a_schedule_can_end_where_the_trial_ends(lab: Any, length: dict[str, int]) -> None:
    rates: list[float] = []

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.loader = super().build_training_data_loader()
            batches = context.get_max_length("batches", self.loader)
            scheduler = CosineAnnealingLR(self.optimizer, T_max=batches)
            self.scheduler = context.wrap_lr_scheduler(scheduler, BATCH)

        def build_training_data_loader(self) -> Any:
            return self.loader

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            rates.append(self.scheduler.get_last_lr()[0])
            return super().evaluate_batch(batch, batch_idx)

    hparams = {"global_batch_size": 2, "batches_per_epoch": 3, "lr": 0.01}
    searcher = {"name": "single", "metric": "loss", "max_length": length}
    once = Schedule(report=Every(6))
    lab(Trial, 6, config={"searcher": searcher}, hparams=hparams, schedule=once)
    assert rates[-1] == pytest.approx(0.0)


def test_the_length_of_a_trial_is_converted_as_its_loop_does(lab: Any) -> None:
    def of(length: Length | None, *arguments: Any, **config: Any) -> int | None:
        return lab.context(length=length, config=config).get_max_length(*arguments)

    loader = DataLoader(list(range(14)), batch_size=2)
    assert of(Length("batches", 10)) == 10
    assert of(Length("epochs", 3), "epochs") == 3
    assert of(Length("epochs", 3), "batches", loader) == 21
    assert of(Length("batches", 15), "epochs", loader) == 3
    assert of(Length("records", 31)) == 15
    assert of(Length("records", 31), "epochs", loader) == 3
    assert of(None) is None
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 8}}
    assert of(None, searcher=searcher) == 8


@pytest.mark.parametrize(
    ("length", "arguments", "message"),
    [
        (Length("epochs", 3), ("steps",), "get_max_length got 'steps'; give 'batches' or"),
        (
            Length("epochs", 3),
            ("batches",),
            "3 epochs, which needs the length of the training data .* give get_max_length",
        ),
        (Length("batches", 3), ("epochs", iter(())), "which must have a length"),
    ],
)
def test_a_length_that_cannot_be_converted_is_refused(
    lab: Any, length: Length, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(TrialError, match=message):
        lab.context(length=length).get_max_length(*arguments)


def test_each_rank_has_its_part_of_an_epoch() -> None:
    loader = DataLoader(list(range(14)), batch_size=2)
    assert [epoch_batches(loader, size) for size in (1, 2, 3)] == [7, 4, 3]
    loader.det_sharded = True
    assert epoch_batches(loader, 2) == 7


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
    assert [metrics["lr"] for metrics in ran.training.values()] == pytest.approx(
        [0.01, 0.001, 0.0001]
    )
    again = lab(
        Trial, 4, hparams={"global_batch_size": 2, "lr": 0.01}, checkpoint=ran.checkpoints[3]
    )
    assert again.training[4]["lr"] == pytest.approx(0.00001)


def test_data_without_a_length_ends_no_epoch_and_that_is_said(lab: Any) -> None:
    class Trial(stepped(EPOCH, 1, [])):  # type: ignore[misc]
        def build_training_data_loader(self) -> Any:
            while True:
                yield torch.ones(2, 1)

    with pytest.warns(
        UserWarning, match="to be stepped every epoch, but the training data has no length"
    ):
        lab(Trial, 2)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize("mode", [EPOCH, BATCH, OPTIMIZER])
def test_a_scheduler_that_needs_a_metric_is_manual_only(mode: LRScheduler.StepMode) -> None:
    with pytest.raises(TrialError, match=r"ReduceLROnPlateau needs a metric.*MANUAL_STEP"):
        LRScheduler(ReduceLROnPlateau(optimizer()), mode)


@pytest.mark.parametrize("frequency", [0, -1, 1.5, True])
def test_a_frequency_is_a_whole_number_of_1_or_more(frequency: Any) -> None:
    with pytest.raises(
        TrialError, match=rf"frequency is {frequency!r}; give a whole number of 1 or more"
    ):
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


# Steps of the optimizer, and not batches


class OwnPace(OneVarTrial):
    """Steps its optimizer itself after every fourth batch, and a second one after every third."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.other = context.wrap_model(torch.nn.Linear(1, 1))
        self.second = context.wrap_optimizer(torch.optim.SGD(self.other.parameters(), lr=0.1))
        self.slow = context.wrap_lr_scheduler(StepLR(self.optimizer, 1, gamma=0.5), OPTIMIZER)
        self.rare = context.wrap_lr_scheduler(StepLR(self.second, 1, gamma=0.5), OPTIMIZER, 2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = ((batch - self.model(batch)) ** 2).mean()
        self.context.backward(loss / 4)
        if (batch_idx + 1) % 4 == 0:
            self.context.step_optimizer(self.optimizer)
        if (batch_idx + 1) % 3 == 0:
            self.context.backward(self.other(batch).mean())
            self.context.step_optimizer(self.second)
        return {"loss": loss, "slow": self.slow.last_epoch, "rare": self.rare.last_epoch}


def test_a_scheduler_counts_the_steps_of_its_own_optimizer(lab: Any) -> None:
    whole = lab(OwnPace, 14)
    assert [report["slow"] for report in whole.training.values()] == [
        (n + 1) // 4 for n in range(14)
    ]
    assert [report["rare"] for report in whole.training.values()] == [
        (n + 1) // 6 for n in range(14)
    ]
    assert whole.training[14]["slow"] == 3


@pytest.mark.parametrize("cut", [3, 4, 5, 11])
def test_steps_of_an_optimizer_go_on_counting_in_a_resumed_run(lab: Any, cut: int) -> None:
    """Also between two steps of a scheduler that is stepped at every second one."""
    whole, first = lab(OwnPace, 14), lab(OwnPace, 14, preempt_at=cut)
    second = lab(OwnPace, 14, checkpoint=first.checkpoints[cut])
    assert {**first.training, **second.training} == whole.training


def test_a_checkpoint_of_before_counts_the_steps_of_its_batches(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say how many steps there were.

    With aggregation there was one in so many batches.
    """
    from det_torch import parts

    config = {"optimizations": {"aggregation_frequency": 2}}
    collect = parts.collect
    with monkeypatch.context() as patch:

        def of_before(context: Any) -> Any:
            return {
                name: value for name, value in collect(context).items() if name != "optimizer_steps"
            }

        patch.setattr(parts, "collect", of_before)
        first = lab(stepped(OPTIMIZER, 2, []), 7, config=config)
    seen: list[int] = []
    lab(stepped(OPTIMIZER, 2, seen), 13, config=config, checkpoint=first.checkpoints[7])
    assert seen == [1, 2, 2, 2, 2, 3]


def test_a_direct_step_of_the_optimizer_counts(lab: Any) -> None:
    """One that does not go through `step_optimizer`, as in a loop without det."""

    class Direct(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.rates = context.wrap_lr_scheduler(StepLR(self.optimizer, 1, gamma=0.5), OPTIMIZER)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((batch - self.model(batch)) ** 2).mean()
            loss.backward()
            if batch_idx % 2 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return {"loss": loss, "steps": self.rates.last_epoch}

    whole, first = lab(Direct, 6), lab(Direct, 6, preempt_at=3)
    assert [report["steps"] for report in whole.training.values()] == [1, 1, 2, 2, 3, 3]
    second = lab(Direct, 6, checkpoint=first.checkpoints[3])
    assert {**first.training, **second.training} == whole.training


def test_a_step_that_dets_own_scaler_skips_is_no_step(lab: Any) -> None:
    class Overflowing(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.rates = context.wrap_lr_scheduler(StepLR(self.optimizer, 1, gamma=0.5), OPTIMIZER)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            before = self.model.weight.detach().clone()
            loss = ((batch - self.model(batch).float()) ** 2).mean()
            self.context.backward(loss * (float("inf") if batch_idx == 1 else 1e-3))
            self.context.step_optimizer(self.optimizer)
            moved = bool((self.model.weight != before).any())
            return {"loss": loss, "moved": moved, "steps": self.rates.last_epoch}

    reports = lab(Overflowing, 3, config={"optimizations": {"precision": "fp16"}}).training
    assert [report["moved"] for report in reports.values()] == [True, False, True]
    assert [report["steps"] for report in reports.values()] == [1, 1, 2]


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_no_step(lab: Any, fused: bool) -> None:
    """A fused optimizer is called even so, and skips by itself."""

    class Overflowing(OneVarTrial):
        def __init__(self, context: Any) -> None:
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=2.0**10))
            super().__init__(context)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=fused)
            self.optimizer = context.wrap_optimizer(optimizer)
            self.scheduler = context.wrap_lr_scheduler(StepLR(optimizer, 1, gamma=0.5), OPTIMIZER)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = ((batch - self.model(batch)) ** 2).mean() * (
                float("inf") if batch_idx == 0 else 1
            )
            self.context.backward(self.scaler.scale(loss))
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return {"loss": 0.0, "lr": self.optimizer.param_groups[0]["lr"]}

    assert [report["lr"] for report in lab(Overflowing, 3).training.values()] == [0.1, 0.05, 0.025]
