"""Runs of tiny modules, in this process, with real checkpoints in a real directory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from tests.support.lab import EACH_BATCH, Host, Ran
from torch.utils.data import DataLoader, TensorDataset

from det_core import CheckpointSink, DistributedContext, Plugins, RunInfo, Schedule, run_trial
from det_core.checkpoint import read_checkpoint
from det_core.config import parse
from det_core.storage import LocalStorage
from det_core.train.run import length_of
from det_lightning import LightningAdapter
from det_lightning.adapter import TrainerAdapter


class Lab:
    """Runs trial classes, or modules that need no more than a trial around them."""

    def __init__(self, root: Path) -> None:
        self.plugins = Plugins.installed(strict=True)
        self.storage = LocalStorage(root / "checkpoints")
        self.root = root

    def __call__(
        self,
        trial: type,
        length: int,
        *,
        schedule: Schedule = EACH_BATCH,
        preempt_at: int | None = None,
        **info: Any,
    ) -> Ran:
        """Train to a length in batches."""
        host, keep = Host(length, preempt_at), CheckpointSink(storage=self.storage)
        framework = self.plugins.frameworks()["lightning"]
        stop = run_trial(
            framework, trial, self.info(**info), host, keep, schedule=lambda adapter: schedule
        )
        return Ran(stop, host)

    def module(
        self,
        make: Any,
        length: int,
        *,
        data: Any = None,
        trainer: Mapping[str, Any] | None = None,
        **run: Any,
    ) -> Ran:
        """Train what `make()` returns, in a trial of no more than that."""
        return self(trial_of(make, data, **(trainer or {})), length, **run)

    def info(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        hparams: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RunInfo:
        """Return a run with these hyperparameters and settings, trained for their length."""
        parsed = parse({"entrypoint": "model_def:Trial", **(config or {})}).config
        return RunInfo(
            config=parsed,
            length=length_of(parsed) if config and "searcher" in config else None,
            hparams=hparams or {},
            build=self.plugins.build("lightning"),
            **{"seed": 1, "trial_id": 1, "distributed": DistributedContext(), **more},
        )

    @contextmanager
    def adapter(self, trial: type, **info: Any) -> Iterator[TrainerAdapter]:
        """Give an adapter that has not trained, and close it."""
        with closing(TrainerAdapter.create(trial, self.info(**info))) as adapter:
            yield adapter

    @contextmanager
    def opened(self, uuid: str) -> Iterator[Path]:
        """Give the directory of a checkpoint."""
        with read_checkpoint(self.storage, uuid) as (path, _):
            yield path


def trial_of(make: Any, data: Any = None, **trainer: Any) -> type[LightningAdapter]:
    """Return a trial class that trains what `make()` returns."""

    class Trial(LightningAdapter):
        def __init__(self, context: Any) -> None:
            super().__init__(context, make(), datamodule=data() if data else None, **trainer)

    return Trial


class Line(pl.LightningModule):
    """y = w·x by plain SGD, with dropout.

    Eight batches of two records in an epoch, in shuffled order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        (x,) = batch
        return ((self.layer(x) - x.sum(1, keepdim=True)) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def train_dataloader(self) -> Any:
        return DataLoader(records(16), batch_size=2, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(records(4), batch_size=2)


def records(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 4, generator=generator))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield Lab(tmp_path)


@pytest.fixture
def line() -> type[Line]:
    return Line


@pytest.fixture
def trial_from() -> Any:
    return trial_of
