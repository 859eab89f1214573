"""The conformance kit's one-weight model, in Lightning."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from det_lightning import LightningAdapter
from det_testing import OneVar
from det_torch.testing import Records


class OneVarModule(pl.LightningModule):
    """The model y = w·x."""

    def __init__(self, settings: OneVar) -> None:
        super().__init__()
        self.settings = settings
        self.linear = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.linear.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        labels = batch
        if self.settings.noise:
            labels = batch * (1 + self.settings.noise * (2 * torch.rand_like(batch) - 1))
        loss = ((labels - self.linear(batch)) ** 2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", ((batch - self.linear(batch)) ** 2).mean())
        self.log("weight", self.linear.weight.detach().squeeze())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.settings.lr)


class OneVarTrial(LightningAdapter):
    """Trains the one-weight model; `det_testing.OneVar` says what must come of it."""

    def __init__(self, context: Any) -> None:
        self.settings = OneVar.of(context.get_hparams())
        super().__init__(context, lightning_module=self.build_module())

    def build_module(self) -> OneVarModule:
        """Return the module; an heir may return another."""
        return OneVarModule(self.settings)

    def build_training_data_loader(self) -> Any:
        xs = [x for batch in range(self.settings.batches_per_epoch) for x in self.settings.records(batch)]
        return DataLoader(Records(xs), batch_size=self.context.get_per_slot_batch_size(), shuffle=self.settings.shuffle)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records(self.settings.validation_records()), batch_size=2)
