"""A script with a Trainer of its own.

What det needs is marked; without it, this is Lightning as you know it.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import det_lightning  # det 1
from det_core import core  # det 2


class Line(pl.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.lr = lr

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def main() -> None:
    pl.seed_everything(1)
    x = torch.linspace(-1, 1, 256).reshape(-1, 1)
    data = TensorDataset(x, 2 * x + 1)
    train, validation = (
        DataLoader(data, batch_size=16, shuffle=True),
        DataLoader(data, batch_size=256),
    )
    with core.init() as context:  # det 3
        lr = context.info.trial.hparams["lr"] if context.info else 0.1
        trainer = det_lightning.trainer(
            context,
            max_epochs=5,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            log_every_n_steps=8,
        )
        trainer.fit(Line(lr), train, validation)


if __name__ == "__main__":
    main()
