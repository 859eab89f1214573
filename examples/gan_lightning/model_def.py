"""A generative adversarial network on the digits (8 by 8 pixels, from scikit-learn).

The module steps two optimizers.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from det_lightning import LightningAdapter


class Gan(pl.LightningModule):
    def __init__(self, latent: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(latent, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Sigmoid()
        )
        self.critic = nn.Sequential(
            nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1)
        )

    def loss(self, images, real: bool):
        verdicts = self.critic(images)
        return nn.functional.binary_cross_entropy_with_logits(
            verdicts, torch.full_like(verdicts, float(real))
        )

    def fakes(self, count: int):
        return self.generator(torch.randn(count, self.hparams.latent, device=self.device))

    def training_step(self, batch, batch_idx):
        (images,) = batch
        of_generator, of_critic = self.optimizers()

        self.toggle_optimizer(of_generator)
        fooled = self.loss(self.fakes(len(images)), real=True)
        of_generator.zero_grad()
        self.manual_backward(fooled)
        self.clip_gradients(of_generator, gradient_clip_val=1.0)
        of_generator.step()
        self.untoggle_optimizer(of_generator)

        self.toggle_optimizer(of_critic)
        told = (
            self.loss(images, real=True) + self.loss(self.fakes(len(images)).detach(), real=False)
        ) / 2
        of_critic.zero_grad()
        self.manual_backward(told)
        of_critic.step()
        self.untoggle_optimizer(of_critic)

        self.log_dict({"generator_loss": fooled, "critic_loss": told})

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        """Tell how far the mean image of the generator's is from that of the digits."""
        (images,) = batch
        self.log("distance", (self.fakes(len(images)).mean(0) - images.mean(0)).norm())

    def configure_optimizers(self):
        parts = (self.generator, self.critic)
        optimizers = [
            torch.optim.Adam(p.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999)) for p in parts
        ]
        return optimizers, [
            torch.optim.lr_scheduler.ExponentialLR(each, 0.97) for each in optimizers
        ]


class GanTrial(LightningAdapter):
    def __init__(self, context) -> None:
        super().__init__(context, Gan(context.get_hparam("latent"), context.get_hparam("lr")))
        images = load_digits(return_X_y=True)[0] / 16
        self.images = TensorDataset(torch.tensor(images, dtype=torch.float32))

    def build_training_data_loader(self):
        return DataLoader(
            self.images, self.context.get_per_slot_batch_size(), shuffle=True, drop_last=True
        )

    def build_validation_data_loader(self):
        return DataLoader(self.images, batch_size=len(self.images))
