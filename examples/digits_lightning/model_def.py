"""Handwritten digits (8 by 8 pixels, from scikit-learn).

A LightningModule, its data, and the trial that wraps them.
"""

from __future__ import annotations

import random

import lightning.pytorch as pl
import torch
import torchmetrics
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from det_lightning import LightningAdapter


class Digits(Dataset):
    """A part of the digits; `augment` shifts each image by up to a pixel."""

    def __init__(self, validation: bool, augment: bool = False) -> None:
        images, labels = load_digits(return_X_y=True)
        chosen = [i for i in range(len(labels)) if (i % 3 == 0) == validation]
        self.images = torch.tensor(images[chosen], dtype=torch.float32).reshape(-1, 8, 8) / 16
        self.labels = torch.tensor(labels[chosen])
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.augment:
            image = torch.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), dims=(0, 1))
        return image.flatten(), self.labels[index]


class DigitsData(pl.LightningDataModule):
    def __init__(self, batch_size: int, workers: int = 0, augment: bool = False) -> None:
        super().__init__()
        self.batch_size, self.workers, self.augment = batch_size, workers, augment

    def train_dataloader(self):
        return DataLoader(
            Digits(False, self.augment), self.batch_size, shuffle=True, num_workers=self.workers
        )

    def val_dataloader(self):
        return DataLoader(Digits(validation=True), batch_size=200)


class DigitsModule(pl.LightningModule):
    def __init__(self, hidden: int, lr: float, momentum: float, dropout: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10)
        )
        self.train_accuracy = torchmetrics.classification.MulticlassAccuracy(10, average="micro")
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self.train_accuracy(scores, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.model(images)
        self.accuracy(scores, labels)
        self.log("val_loss", nn.functional.cross_entropy(scores, labels), sync_dist=True)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.hparams.lr, momentum=self.hparams.momentum
        )
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self.hparams.lr,
            total_steps=int(self.trainer.estimated_stepping_batches),
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class DigitsTrial(LightningAdapter):
    def __init__(self, context) -> None:
        settings = context.get_hparams()
        module = DigitsModule(
            settings["hidden"], settings["lr"], settings["momentum"], settings["dropout"]
        )
        data = DigitsData(
            context.get_per_slot_batch_size(),
            settings.get("workers", 0),
            bool(settings.get("augment", False)),
        )
        super().__init__(context, module, datamodule=data)
