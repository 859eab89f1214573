"""A small trial with everything that a resume could get wrong, and a way to train it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import det_torch
from det_torch import Batch, DataLoader, FitResult, LRScheduler, PyTorchTrial

EPOCH = 6  # batches


class Lines(torch.utils.data.Dataset):
    """Points on a line, with noise that is drawn when they are read."""

    def __len__(self) -> int:
        return 4 * EPOCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((3,), index / 24)
        return x, x.sum(0, keepdim=True) + 0.01 * torch.rand(1)


class LineTrial(PyTorchTrial):
    """Momentum, dropout, a scheduler, shuffling.

    `interrupt` is a batch in which Ctrl-C is pressed.
    """

    def __init__(self, context: det_torch.PyTorchTrialContext) -> None:
        self.context = context
        hparams = context.get_hparams()
        self.interrupt = hparams.get("interrupt")
        self.seen: list[int] = []
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        )
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.9)
        context.wrap_lr_scheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def build_training_data_loader(self) -> Any:
        workers = self.context.get_hparams().get("workers", 0)
        return DataLoader(Lines(), batch_size=4, shuffle=True, num_workers=workers)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Lines(), batch_size=12)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.seen.append(batch_idx)
        if batch_idx == self.interrupt:
            signal.raise_signal(signal.SIGINT)
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "first": x[0, 0]}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        return {"validation_loss": nn.functional.mse_loss(self.model(x), y)}


class Trained:
    """What a training left: its trial, its result, its weights."""

    def __init__(self, trial: Any, result: FitResult) -> None:
        self.trial, self.result = trial, result

    @property
    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.trial.context.models[0].parameters()]

    @property
    def reports(self) -> list[Any]:
        return [tuple(report) for report in self.result.reports]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trained]:
    """Train in an empty directory: `train(trial_class, hparams, exp_conf, **fit)`."""
    here = tmp_path / "script"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(
        trial_class: type[PyTorchTrial] = LineTrial,
        hparams: dict[str, Any] | None = None,
        exp_conf: dict[str, Any] | None = None,
        **fit: Any,
    ) -> Trained:
        torch.manual_seed(1)
        fit = {"reporting_period": Batch(4), **fit}
        with det_torch.init(hparams=hparams, exp_conf=exp_conf) as context:
            trial = trial_class(context)
            return Trained(trial, det_torch.Trainer(trial, context).fit(**fit))

    return run


@pytest.fixture
def line() -> type[LineTrial]:
    return LineTrial
