"""The one-weight model in Lightning with what real models have.

The same is trained and evaluated by Lightning alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from tests.contract.torch_variants import Normalized, Share, Stream
from torch.utils.data import DataLoader

from det_lightning.testing import OneVarModule, OneVarTrial
from det_testing import OneVar
from det_torch.testing import Records


class Normalizing(OneVarModule):
    """Weights what a batch normalisation leaves of the data."""

    def __init__(self, settings: OneVar) -> None:
        super().__init__(settings)
        self.linear = Normalized()


class Doubling(OneVarModule):
    """Doubles the weight when training ends."""

    def on_train_end(self) -> None:
        with torch.no_grad():
            self.linear.weight.mul_(2)


class Falling(OneVarModule):
    """Lets the learning rate fall to 0 in the steps that the trainer says there will be."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        length = self.trainer.max_steps
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda batch: 1 - batch / length)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Bypass(OneVarModule):
    """Steps its optimizer itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


class VariantTrial(OneVarTrial):
    """Trains a module of another class."""

    module: type[OneVarModule] = OneVarModule

    def build_module(self) -> OneVarModule:
        return self.module(self.settings)


class Buffered(VariantTrial):
    module = Normalizing


class Finishing(VariantTrial):
    module = Doubling


class Scheduled(VariantTrial):
    module = Falling


class Bypassing(VariantTrial):
    module = Bypass


class Streamed(OneVarTrial):
    """Reads a stream."""

    def build_training_data_loader(self) -> Any:
        return DataLoader(Stream(self.settings), batch_size=self.context.get_per_slot_batch_size())


class Sharded(OneVarTrial):
    """Reads a stream of its rank's own."""

    def build_training_data_loader(self) -> Any:
        data = Share(self.settings, self.context.distributed)
        return DataLoader(data, batch_size=self.context.get_per_slot_batch_size())


VARIANTS: dict[str, type] = {
    "buffered": Buffered,
    "finishing": Finishing,
    "scheduled": Scheduled,
    "sharded": Sharded,
    "streamed": Streamed,
    "bypassing": Bypassing,
}


class Losses(pl.Callback):
    """Keeps the loss of each batch."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.found.append(trainer.callback_metrics["loss"].item())


def module_of(trial: type, settings: OneVar) -> OneVarModule:
    """Return the module that a trial class trains."""
    return trial.module(settings) if issubclass(trial, VariantTrial) else OneVarModule(settings)


def evaluate(trial: type, path: Path, settings: OneVar) -> dict[str, float]:
    """Load the weights of a checkpoint, and validate."""
    module = module_of(trial, settings)
    module.load_state_dict(torch.load(path / "lightning.ckpt", weights_only=True)["state_dict"])
    return validated(quiet(), module, settings)


def plain(trial: type, settings: OneVar, batches: int) -> tuple[list[float], dict[str, float]]:
    """Train by a trainer of Lightning's own."""
    module, losses = module_of(trial, settings), Losses()
    trainer = quiet(max_steps=batches, callbacks=[losses])
    xs = [x for batch in range(settings.batches_per_epoch) for x in settings.records(batch)]
    trainer.fit(module, DataLoader(Records(xs), batch_size=settings.global_batch_size))
    return losses.found, validated(trainer, module, settings)


def quiet(**options: Any) -> pl.Trainer:
    """Return a trainer that writes nothing."""
    off = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", **off, **options)


def validated(trainer: pl.Trainer, module: OneVarModule, settings: OneVar) -> dict[str, float]:
    """Return what the trial reports."""
    data = DataLoader(Records(settings.validation_records()), batch_size=2)
    return dict(trainer.validate(module, data, verbose=False)[0])
