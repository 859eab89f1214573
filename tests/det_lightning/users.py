"""Models as users of Lightning bring them, and what its own Trainer makes of them.

`python -m tests.det_lightning.users FOLDER` trains each by det, and kills the process with SIGKILL
on the way, twice.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from tests.det_lightning.conftest import Lab, Ran, records, trial_of
from torch.utils.data import DataLoader

from det_core import At, Every, Schedule
from det_core.core import Context
from det_lightning import trainer

EPOCH, EPOCHS = 8, 4
LENGTH = EPOCH * EPOCHS
SAVED_AT = (11, 2 * EPOCH)  # within an epoch, and at the end of one; killed two batches later


@dataclass
class Seen:
    """What a module saw of its training.

    In batch `kill_at` of what it sees it kills its process, once it is `ready`.
    """

    lengths: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    kill_at: int | None = None
    ready: Callable[[], object] = lambda: True


class Net(pl.LightningModule):
    """A small network, with dropout and, unless it is told otherwise, BatchNorm.

    Its data comes in one order.
    """

    schedule: Callable[[pl.Trainer, Any], Any] | None = None
    on_ranks = False

    def __init__(self, seen: Seen, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        middle = [torch.nn.BatchNorm1d(8)] if norm else []
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            *middle,
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 1),
        )
        self.seen = seen

    def __deepcopy__(self, memo: Any) -> Net:  # copies, which callbacks average, see nothing
        copied = type(self)(
            Seen(), any(isinstance(each, torch.nn.BatchNorm1d) for each in self.layer)
        )
        copied.load_state_dict(self.state_dict())
        return copied

    def loss(self, batch: Any) -> torch.Tensor:
        (x,) = batch
        return ((self.layer(x) - x.sum(1, keepdim=True)) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if len(self.seen.rates) == self.seen.kill_at:
            until = time.monotonic() + 30
            while not self.seen.ready() and time.monotonic() < until:
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.loss(batch)
        self.seen.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=self.on_ranks)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), sync_dist=self.on_ranks)

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
        self.log("at_end", float(len(self.trainer.callback_metrics)))

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


def config(**length: int) -> dict[str, Any]:
    return {"searcher": {"name": "single", "metric": "val_loss", "max_length": length}}


def last_state(lab: Lab, ran: Ran) -> dict[str, Any]:
    with lab.opened(ran.checkpoints[max(ran.checkpoints)]) as path:
        found: dict[str, Any] = torch.load(path / "lightning.ckpt", weights_only=True)
    return found


class OnRanks(Net):
    """Gives each rank its share."""

    schedule = staticmethod(one_cycle)
    on_ranks = True

    def train_dataloader(self) -> Any:
        return self.share(records(EPOCH * 4))

    def val_dataloader(self) -> Any:
        return self.share(records(8))

    def share(self, data: Any) -> Any:
        share = torch.utils.data.Subset(
            data, range(self.trainer.global_rank, len(data), self.trainer.world_size)
        )
        share.det_sharded = True
        return DataLoader(share, batch_size=2, generator=torch.Generator())


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
    "two batches to a step": Case(
        scheduled(one_cycle), lambda path: {"accumulate_grad_batches": 3}
    ),
    "averaging of weights": Case(
        given=lambda path: {
            "callbacks": [StochasticWeightAveraging(0.01, 0.5, annealing_epochs=2)]
        },
        norm=False,
    ),
    "averaging of weights, with BatchNorm": Case(
        given=lambda path: {"callbacks": [StochasticWeightAveraging(0.01, 0.5, annealing_epochs=2)]}
    ),
    "a moving average": Case(given=lambda path: {"callbacks": [EMAWeightAveraging(decay=0.9)]}),
    "stopping early": Case(
        given=lambda path: {"callbacks": [EarlyStopping("val_loss", patience=2, min_delta=100.0)]}
    ),
    "a logger": Case(given=lambda path: {"logger": CSVLogger(path), "log_every_n_steps": 1}),
    "a data module": Case(data=Data),
    "bf16": Case(given=lambda path: {"precision": "bf16-mixed"}),
    "fp16": Case(given=lambda path: {"precision": "16-true"}),
}


def keeping(folder: Path) -> dict[str, Any]:
    """Return what a script gives its Trainer to keep the best, to stop early, and to log."""
    best = ModelCheckpoint(folder / "best", monitor="val_loss", save_top_k=2)
    stopping = EarlyStopping("val_loss", patience=2, min_delta=100.0)
    return {"callbacks": [best, stopping], "logger": CSVLogger(folder), "log_every_n_steps": 1}


def quiet(make: Any = pl.Trainer, **given: Any) -> pl.Trainer:
    """Return a Trainer that writes nothing but what it is asked to."""
    off = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer: pl.Trainer = make(**{**off, "num_sanity_val_steps": 0, "accelerator": "cpu", **given})
    return trainer


class Alone(pl.Callback):
    """What Lightning alone makes of a module.

    It, its Trainer, and every metric by the position that it is of.
    """

    def __init__(
        self, module: Net, data: Any = None, *, make: Any = pl.Trainer, **given: Any
    ) -> None:
        self.losses: list[float] = []
        self.of_epochs: list[float] = []
        self.validations: list[float] = []
        self.module, callbacks = module, [self, *given.pop("callbacks", ())]
        self.trainer = quiet(make, max_epochs=EPOCHS, callbacks=callbacks, **given)
        self.trainer.fit(module, datamodule=data() if data else None)
        other = quiet(precision=given.get("precision", "32-true"))
        self.validations = [
            *self.validations[:EPOCHS][:-1],
            other.validate(module, verbose=False)[0]["val_loss"],
        ]

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.losses.append(trainer.callback_metrics["loss_step"].item())

    def on_train_epoch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.of_epochs.append(trainer.callback_metrics["loss_epoch"].item())

    def on_validation_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.validations.append(trainer.callback_metrics["val_loss"].item())

    def metrics(self, behind: int = 0) -> dict[str, dict[int, float]]:
        """Return them; but not of an epoch that a callback has added, in which no step is taken."""
        found = {
            "loss_step": dict(enumerate(self.losses[:LENGTH], 1)),
            "loss_epoch": {EPOCH * n: loss for n, loss in enumerate(self.of_epochs[:EPOCHS], 1)},
            "val_loss": {EPOCH * n: loss for n, loss in enumerate(self.validations, 1)},
        }
        return {
            name: {at: value for at, value in row.items() if at > behind}
            for name, row in found.items()
        }


def by_det(lab: Lab, made: Case, seen: Seen, save_at: int | None = None, **run: Any) -> Ran:
    """Train a case by det, from its beginning or from a checkpoint."""
    trial = trial_of(lambda: made.module(seen, made.norm), made.data, **made.given(lab.root))
    saves = At({save_at}) if save_at else Every(0)
    schedule = Schedule(report=Every(1), validate=Every(EPOCH), checkpoint=saves, policy="none")
    return lab(trial, LENGTH, schedule=schedule, config=config(epochs=EPOCHS), **run)


def by_script(context: Context, folder: Path, *more: pl.Callback) -> Alone:
    """Train as a script does, with what it keeps in a folder."""
    given = keeping(folder)
    given["callbacks"] += more
    make = partial(trainer, context)
    return Alone(scheduled(cosine)(Seen()), Data, make=make, enable_checkpointing=True, **given)


def metrics_of(ran: Ran, behind: int) -> dict[str, dict[int, float]]:
    """Return what `Alone.metrics` does, of what det has reported."""
    groups = {"loss_step": ran.training, "loss_epoch": ran.training, "val_loss": ran.validation}
    return {
        name: {at: row[name] for at, row in rows.items() if name in row and at > behind}
        for name, rows in groups.items()
    }


def main(folder: str) -> None:
    """Train each in processes of its own, which do not survive it.

    They share what has been imported.
    """
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    for name, case in CASES.items():
        for at in SAVED_AT:
            child = os.fork()
            if child == 0:
                lab = Lab(Path(folder, name, str(at)))
                saved = partial(lab.storage.list)  # beside the training of the batches behind it
                by_det(lab, case, Seen(kill_at=at + 2, ready=saved), at)
                os._exit(1)
            _, status = os.waitpid(child, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL, f"{name} ended with {status}"


if __name__ == "__main__":
    main(sys.argv[1])
