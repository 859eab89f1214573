"""The models of `users`, trained by torch alone and by det.

`python trained.py FOLDER` kills each on the way, with SIGKILL.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from users import LENGTH, USERS, User

import det_torch
from det_torch import Batch, FitResult, LRScheduler, PyTorchCallback, PyTorchTrial

SEED, SAVE_EVERY, KILLED_AT = 7, 3, 5


# By torch alone


def states(modules: list[nn.Module]) -> list[dict[str, torch.Tensor]]:
    return [copy.deepcopy(module.state_dict()) for module in modules]


def validated(user: User) -> float:
    """Return the mean over the batches."""
    for module in user.modules:
        module.eval()
    losses = []
    with torch.random.fork_rng(), torch.no_grad():
        for batch in DataLoader(user.data().validation, batch_size=4):
            with torch.autocast("cpu", torch.bfloat16, enabled=user.precision == "bf16"):
                losses.append(user.evaluate(batch))
    for module in user.modules:
        module.train()
    return torch.stack(losses).double().mean().item()


class Alone:
    """A model that torch alone has trained.

    Losses of the batches, metrics of validations, and what is left of it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        torch.manual_seed(SEED)
        self.user = user = USERS[name]()
        loader = DataLoader(user.data().training, batch_size=4)
        self.losses: list[float] = []
        self.validations: list[float] = []
        while len(self.losses) < LENGTH:
            with (
                torch.random.fork_rng()
            ):  # torch's loader draws a seed for processes that it does not have
                batches = iter(loader)
            for batch in batches:
                self.losses.append(
                    user.train(batch, self._autocast, torch.Tensor.backward, self._step).item()
                )
                if user.scheduler is not None:
                    user.scheduler.step()
                if len(self.losses) == LENGTH:
                    user.end()
                if len(self.losses) in (4, LENGTH):
                    self.validations.append(validated(user))
                if len(self.losses) == LENGTH:
                    break
        self.states = states(user.modules)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.user.precision == "bf16")

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()


# By det


class UserTrial(PyTorchTrial):
    """The same by det; `kill_at` is a batch in which the process of the last rank is killed."""

    def __init__(self, context: Any) -> None:
        self.context = context
        hparams = context.get_hparams()
        last = context.distributed.rank == context.distributed.size - 1
        self.kill_at = hparams.get("kill_at") if last else None
        self.user = user = USERS[hparams["model"]]()
        user.modules = [context.wrap_model(module) for module in user.modules]
        user.optimizers = [context.wrap_optimizer(optimizer) for optimizer in user.optimizers]
        if user.scheduler is not None:
            context.wrap_lr_scheduler(user.scheduler, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def build_training_data_loader(self) -> Any:
        return DataLoader(self.user.data().training, batch_size=4)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(self.user.data().validation, batch_size=4)

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"end": End(self.user)}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == self.kill_at:
            until = time.monotonic() + 30  # what was saved before is written beside training
            while not any(Path("checkpoints").glob("*/manifest.json")) and time.monotonic() < until:
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.user.train(
            batch, nullcontext, self.context.backward, self.context.step_optimizer
        )
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": self.user.evaluate(batch)}


class End(PyTorchCallback):
    def __init__(self, user: User) -> None:
        self.user = user

    def on_training_end(self) -> None:
        self.user.end()


def train(name: str, latest: Path | None = None, **hparams: Any) -> tuple[UserTrial, FitResult]:
    """Train by det in the working directory, from the beginning or from a checkpoint."""
    config = {
        "reproducibility": {"experiment_seed": SEED},
        "optimizations": {"precision": USERS[name].precision},
    }
    with det_torch.init(
        hparams={"model": name, **hparams}, exp_conf=config, enable_tensorboard_logging=False
    ) as context:
        trial = UserTrial(context)
        result = det_torch.Trainer(trial, context).fit(
            max_length=Batch(LENGTH),
            reporting_period=Batch(1),
            validation_period=Batch(4),
            checkpoint_period=Batch(SAVE_EVERY),
            checkpoint_policy="none",
            latest_checkpoint=latest,
        )
    return trial, result


def main(folder: str) -> None:
    """Train each in a process of its own, which does not survive it.

    They share what has been imported.
    """
    torch.set_num_threads(1)
    for name in USERS:
        place = Path(folder) / name
        place.mkdir()
        child = os.fork()
        if child == 0:
            os.chdir(place)
            train(name, kill_at=KILLED_AT)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"{name} ended with {status}"


if __name__ == "__main__":
    main(sys.argv[1])
