"""Handwritten digits (8 by 8 pixels, from scikit-learn) with a small network."""

from __future__ import annotations

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from det_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial


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


class OwnOptimizerSettings(PyTorchCallback):
    """Makes a copy in population-based training (pbt.yaml) train with its own settings.

    Otherwise it would have those of its parent's optimizer.
    """

    def __init__(self, **settings: float) -> None:
        self.settings = settings

    def on_checkpoint_load_start(self, checkpoint) -> None:
        for group in checkpoint["optimizers_state_dict"][0]["param_groups"]:
            if group["initial_lr"] != self.settings["lr"]:
                decay = group["lr"] / group["initial_lr"]
                group["initial_lr"], group["lr"] = self.settings["lr"], self.settings["lr"] * decay
            group["momentum"], group["weight_decay"] = (
                self.settings["momentum"],
                self.settings["weight_decay"],
            )


class DigitsTrial(PyTorchTrial):
    def __init__(self, context) -> None:
        self.context = context
        self.settings = {
            "lr": context.get_hparam("lr"),
            "momentum": context.get_hparam("momentum"),
            "weight_decay": context.get_hparams().get("weight_decay", 0.0),
        }
        hidden = context.get_hparam("hidden")
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Linear(64, hidden),
                nn.ReLU(),
                nn.Dropout(context.get_hparam("dropout")),
                nn.Linear(hidden, 10),
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), **self.settings)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.95),
            LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.loss = nn.CrossEntropyLoss()

    def build_callbacks(self):
        return {"own_settings": OwnOptimizerSettings(**self.settings)}

    def build_training_data_loader(self):
        return DataLoader(
            Digits(validation=False, augment=self.context.get_hparams().get("augment", False)),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
            num_workers=self.context.get_hparams().get("workers", 2),
        )

    def build_validation_data_loader(self):
        return DataLoader(Digits(validation=True), batch_size=200)

    def train_batch(self, batch, epoch_idx, batch_idx):
        images, labels = batch
        loss = self.loss(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": self.loss(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
        }
