"""What Lightning's own Trainer makes of a module, det makes of it, bit for bit: alone, and in runs that go on from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from tests.det_lightning.conftest import records, trial_of
from torch.utils.data import DataLoader

from det_core import At, Every, Schedule

EPOCH, EPOCHS = 8, 4
LENGTH = EPOCH * EPOCHS


@dataclass
class Seen:
    """What a module saw of its training."""

    lengths: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)


class Net(pl.LightningModule):
    """A small network, with dropout and, unless it is told otherwise, BatchNorm; its data comes in one order."""

    schedule: Callable[[pl.Trainer, Any], Any] | None = None

    def __init__(self, seen: Seen, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        middle = [torch.nn.BatchNorm1d(8)] if norm else []
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(4, 8), *middle, torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        self.seen = seen

    def __deepcopy__(self, memo: Any) -> Net:  # copies, which callbacks average, see nothing
        copied = type(self)(Seen(), any(isinstance(each, torch.nn.BatchNorm1d) for each in self.layer))
        copied.load_state_dict(self.state_dict())
        return copied

    def loss(self, batch: Any) -> torch.Tensor:
        (x,) = batch
        return ((self.layer(x) - x.sum(1, keepdim=True)) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.seen.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        trainer = self.trainer
        self.seen.lengths = {
            "max_epochs": trainer.max_epochs,
            "max_steps": trainer.max_steps,
            "estimated": trainer.estimated_stepping_batches,
            "in an epoch": trainer.num_training_batches,
        }
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = type(self).schedule
        return optimizer if schedule is None else ([optimizer], [schedule(trainer, optimizer)])

    def on_train_start(self) -> None:
        torch.manual_seed(7)

    def on_train_epoch_end(self) -> None:
        self.seen.hooks.append("epoch")
        self.log("at_end", float(len(self.trainer.callback_metrics)))

    def on_validation_end(self) -> None:
        self.seen.hooks.append("validated")

    def on_train_end(self) -> None:
        self.seen.hooks.append("end")

    def train_dataloader(self) -> Any:
        return DataLoader(records(EPOCH * 2), batch_size=2, generator=torch.Generator())

    def val_dataloader(self) -> Any:
        return DataLoader(records(6), batch_size=2, generator=torch.Generator())


def scheduled(schedule: Callable[[Any, Any], Any]) -> type[Net]:
    return type("Scheduled", (Net,), {"schedule": staticmethod(schedule)})


def cosine(trainer: Any, optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=trainer.max_epochs)


def one_cycle(trainer: Any, optimizer: Any) -> Any:
    total = trainer.estimated_stepping_batches
    return {
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total),
        "interval": "step",
    }


def plateau(trainer: Any, optimizer: Any) -> Any:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    return {"scheduler": scheduler, "monitor": "val_loss"}


def alone(module: pl.LightningModule, tmp_path: Path, data: Any = None, **given: Any) -> pl.Trainer:
    """Train a module by Lightning alone."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        **{
            **quiet,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
            "default_root_dir": tmp_path,
            **given,
        }
    )
    trainer.fit(module, datamodule=data() if data else None)
    return trainer


def config(**length: int) -> dict[str, Any]:
    return {"searcher": {"name": "single", "metric": "val_loss", "max_length": length}}


def last_state(lab: Any, ran: Any) -> dict[str, Any]:
    with lab.opened(ran.checkpoints[max(ran.checkpoints)]) as path:
        found: dict[str, Any] = torch.load(path / "lightning.ckpt", weights_only=True)
    return found


def assert_same_weights(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    expected = module.state_dict()
    assert list(expected) == list(state)
    for name, value in expected.items():
        assert torch.equal(value, state[name]), name


class Data(pl.LightningDataModule):
    """Gives what the module would, once it is set up."""

    def setup(self, stage: str) -> None:
        self.records = records(EPOCH * 2)

    def train_dataloader(self) -> Any:
        return DataLoader(self.records, batch_size=2, generator=torch.Generator())

    def val_dataloader(self) -> Any:
        return DataLoader(records(6), batch_size=2, generator=torch.Generator())


@dataclass
class Case:
    """A module, and what else the Trainer is given."""

    module: Any = Net
    given: Callable[[Path], dict[str, Any]] = lambda path: {}
    norm: bool = True
    data: Any = None


CASES = {
    "nothing": Case(),
    "a cosine over the epochs": Case(scheduled(cosine)),
    "one cycle over the steps": Case(scheduled(one_cycle)),
    "a plateau": Case(scheduled(plateau)),
    "two batches to a step": Case(scheduled(one_cycle), lambda path: {"accumulate_grad_batches": 3}),
    "averaging of weights": Case(
        given=lambda path: {"callbacks": [StochasticWeightAveraging(0.01, 0.5, annealing_epochs=2)]}, norm=False
    ),
    "averaging of weights, with BatchNorm": Case(
        given=lambda path: {"callbacks": [StochasticWeightAveraging(0.01, 0.5, annealing_epochs=2)]}
    ),
    "a moving average": Case(given=lambda path: {"callbacks": [EMAWeightAveraging(decay=0.9)]}),
    "stopping early": Case(given=lambda path: {"callbacks": [EarlyStopping("val_loss", patience=0, min_delta=100.0)]}),
    "a logger": Case(given=lambda path: {"logger": CSVLogger(path), "log_every_n_steps": 1}),
    "a data module": Case(data=Data),
    "bf16": Case(given=lambda path: {"precision": "bf16-mixed"}),
    "fp16": Case(given=lambda path: {"precision": "16-true"}),
}
RUNS: dict[str, int | None] = {"in one run": None, "in two": 11, "in two, from an epoch's end": 2 * EPOCH}


@pytest.mark.parametrize("parted", list(RUNS))
@pytest.mark.parametrize("case", list(CASES))
def test_the_weights_are_lightnings(lab: Any, tmp_path: Path, case: str, parted: str) -> None:
    """After the hooks that end training; a run that is killed goes on from what was saved at some batch."""
    made, at, seen, other = CASES[case], RUNS[parted], Seen(), Seen()
    module = made.module(other, made.norm)
    trainer = alone(module, tmp_path / "alone", made.data, max_epochs=EPOCHS, **made.given(tmp_path / "alone"))
    given = made.given(tmp_path / "det")
    trial = trial_of(lambda: made.module(seen, made.norm), made.data, **given)
    schedule = Schedule(report=Every(1), validate=Every(EPOCH), checkpoint=At({at}) if at else Every(0), policy="none")
    ran = lab(trial, LENGTH, schedule=schedule, config=config(epochs=EPOCHS))
    if at and case != "stopping early":
        seen.rates.clear()
        trial = trial_of(lambda: made.module(seen, made.norm), made.data, **made.given(tmp_path / "again"))
        ran = lab(trial, LENGTH, schedule=schedule, config=config(epochs=EPOCHS), checkpoint=ran.checkpoints[at])
    state = last_state(lab, ran)
    assert_same_weights(module, state["state_dict"])
    assert seen.lengths == other.lengths
    batches = len(other.rates)
    assert other.rates[batches - len(seen.rates) :] == seen.rates
    states = [scheduler.scheduler.state_dict() for scheduler in trainer.lr_scheduler_configs]
    assert (str(states) == str(state["lr_schedulers"])) is True
    if case == "a logger" and not at:
        one, two = (next((tmp_path / who).rglob("metrics.csv")).read_text() for who in ("alone", "det"))
        assert one == two
