"""A run that begins from a checkpoint, at any batch, gives the numbers of an uninterrupted one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from tests.det_lightning.conftest import Lab, Line, records, trial_of
from torch.utils.data import DataLoader, IterableDataset

from det_core import At, Every, Schedule

LENGTH = 20
POSITIONS = [1, 3, 5, 7, 8, 15, 16]
SCHEDULE = Schedule(report=Every(3), validate=Every(5), policy="none")


class Rich(Line):
    """Logs in every way, steps a scheduler in each step, and averages weights in a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()
        self.both = torchmetrics.MetricCollection(
            {"a": torchmetrics.MeanMetric(), "b": torchmetrics.SumMetric()}
        )
        self.register_buffer("average", torch.zeros(8, 4))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.mean(loss.detach())
        self.both.update(loss.detach())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx=max)
        self.log("mean", self.mean, on_step=True, on_epoch=True)
        self.log_dict(self.both, on_step=False, on_epoch=True)
        if batch_idx % 2:
            self.log("odd", loss)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        self.average.lerp_(self.layer[0].weight.detach(), 0.1)
        torch.rand(1)

    def on_train_epoch_end(self) -> None:
        self.log("noise", torch.rand(1))
        self.average.mul_(0.5)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Plateau(Rich):
    """Waits for a plateau of what the epochs measure."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, threshold=10.0
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


class Manual(Line):
    """Steps two optimizers itself, one of them behind every third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss)
        first.step()
        first.zero_grad()
        if (batch_idx + 1) % 3 == 0:
            second.step()
            second.zero_grad()
        self.log("loss", loss)

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        optimizers = [
            torch.optim.SGD(self.layer[i].parameters(), lr=0.05, momentum=0.9) for i in (0, 2)
        ]
        return optimizers, [torch.optim.lr_scheduler.StepLR(optimizers[0], 1, 0.5)]


class Endless(IterableDataset):
    """Five batches in an epoch, of which it says nothing; it keeps its own place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        rows = torch.randn(10, 4, generator=generator)
        for at in range(self.at, 10):
            self.at = at + 1
            yield (rows[at],)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.at = state["at"]


class Unsized(Rich):
    def train_dataloader(self) -> Any:
        return DataLoader(Endless(), batch_size=2)


class Several(Rich):
    """Trains on two loaders of different lengths."""

    def train_dataloader(self) -> Any:
        return {
            "long": DataLoader(records(14), batch_size=2, shuffle=True),
            "short": DataLoader(records(6), batch_size=2, shuffle=True),
        }

    def loss(self, batch: Any) -> torch.Tensor:
        if isinstance(batch, dict):
            return super().loss(batch["long"]) + super().loss(batch["short"])
        return super().loss(batch)


CASES = {
    "two batches to a step": (Rich, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    "three batches to a step": (Rich, {"accumulate_grad_batches": 3}),
    "a plateau": (Plateau, {}),
    "manual optimization": (Manual, {}),
    "data without a length": (Unsized, {"accumulate_grad_batches": 2}),
    "several loaders": (Several, {}),
    "a part of each epoch": (Rich, {"limit_train_batches": 5}),
    "bf16": (Rich, {"precision": "bf16-mixed"}),
}


def state(lab: Any, uuid: str) -> dict[str, Any]:
    with lab.opened(uuid) as path:
        return torch.load(path / "lightning.ckpt", weights_only=True)


def behind(rows: Mapping[int, Any], at: int) -> dict[int, Any]:
    return {batches: metrics for batches, metrics in rows.items() if batches > at}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The runs that are not interrupted, by case, and what made and keeps them."""
    return {"lab": Lab(tmp_path_factory.mktemp("wholes"))}


@pytest.mark.sample(12)
@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("case", list(CASES))
def test_going_on_from_any_batch_changes_nothing(
    wholes: dict[str, Any], case: str, at: int
) -> None:
    module, trainer = CASES[case]
    if module is Plateau and at == 5:
        pytest.skip("its schedule validates and saves at once there")
    schedule = dataclasses.replace(SCHEDULE, checkpoint=At(set(POSITIONS)))
    trial, lab = trial_of(module, **trainer), wholes["lab"]
    if case not in wholes:
        wholes[case] = lab(trial, LENGTH, schedule=schedule)
    whole = wholes[case]
    second = lab(trial, LENGTH, schedule=schedule, checkpoint=whole.checkpoints[at])
    assert behind(second.training, at) == behind(whole.training, at)
    assert behind(second.validation, at) == behind(whole.validation, at)
    one, other = (state(lab, run.checkpoints[LENGTH]) for run in (whole, second))
    assert str(one) == str(other)


@pytest.mark.parametrize("at", [5, 8, 10, 11])
def test_going_on_behind_a_preemption_changes_nothing(lab: Any, at: int) -> None:
    """A validation that was due where it stopped is whole for callbacks and schedulers."""

    class Trial(trial_of(Plateau)):  # type: ignore[misc]
        def build_callbacks(self) -> Any:
            return {"patience": pl.callbacks.EarlyStopping("val_loss", patience=100)}

    trial = Trial
    schedule = dataclasses.replace(SCHEDULE, report=Every(1))
    whole = lab(trial, LENGTH, schedule=schedule)
    first = lab(trial, LENGTH, schedule=schedule, preempt_at=at)
    assert list(first.checkpoints) == [at]
    second = lab(trial, LENGTH, schedule=schedule, checkpoint=first.checkpoints[at])
    assert {**first.training, **second.training} == whole.training
    assert {**first.validation, **second.validation} == whole.validation
    one, other = (state(lab, run.checkpoints[LENGTH]) for run in (whole, second))
    assert str(one) == str(other)


def test_warm_start_has_the_weights_and_begins_at_batch_0(
    lab: Any, line: Any, trial_from: Any
) -> None:
    trial = trial_from(line)
    first = lab(trial, 5)
    second = lab(trial, 3, checkpoint=first.checkpoints[5], trial_id=2)
    assert list(second.training) == [1, 2, 3]
    assert second.losses != lab(trial, 3).losses


def test_the_file_is_lightnings_own_too(lab: Any, line: Any, trial_from: Any) -> None:
    """`load_from_checkpoint` reads it."""
    ran = lab(trial_from(line), 5)
    with lab.opened(ran.checkpoints[5]) as path:
        module = line.load_from_checkpoint(path / "lightning.ckpt", weights_only=True)
    assert torch.equal(
        module.layer[0].weight, state(lab, ran.checkpoints[5])["state_dict"]["layer.0.weight"]
    )
