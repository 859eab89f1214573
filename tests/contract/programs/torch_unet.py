"""A U-Net that finds discs in noise, on images that are flipped at random.

It learns by Dice loss and cross entropy.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.contract.programs.suite import Outcome
from tests.contract.programs.torch_parts import EpochShuffle, seed_everything, train
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from det_torch import DataLoader, LRScheduler, PyTorchTrial

BATCH = 8
TWO_RANKS = (0.2, "batch normalization over each rank's part")


def discs(count: int, seed: int) -> Dataset[Any]:
    """Return images of 16 by 16 pixels with a disc each, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    centres = 4 + 8 * torch.rand(count, 2, 1, 1, generator=generator)
    radii = 2 + 3 * torch.rand(count, 1, 1, generator=generator)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    masks = (((grid - centres) ** 2).sum(1) < radii**2).float()[:, None]
    return TensorDataset(masks + 0.5 * torch.randn(count, 1, 16, 16, generator=generator), masks)


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class UNet(nn.Module):
    """Two levels, with dropout at the bottom."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(1, width), block(width, 2 * width)])
        self.bottom = nn.Sequential(block(2 * width, 4 * width), nn.Dropout2d(0.1))
        self.ups = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2),
                nn.ConvTranspose2d(2 * width, width, 2, stride=2),
            ]
        )
        self.joins = nn.ModuleList([block(4 * width, 2 * width), block(2 * width, width)])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, join, skip in zip(self.ups, self.joins, reversed(skips), strict=True):
            x = join(torch.cat([up(x), skip], dim=1))
        return self.head(x)


def dice(scores: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return the loss of each image's overlap, averaged over the images."""
    found = scores.sigmoid()
    both, either = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (either + 1)).mean()


def losses(model: nn.Module, images: torch.Tensor, masks: torch.Tensor) -> dict[str, torch.Tensor]:
    if torch.rand(()) < 0.5:
        images, masks = images.flip(-1), masks.flip(-1)
    scores = model(images)
    overlap = dice(scores, masks)
    return {"loss": overlap + F.binary_cross_entropy_with_logits(scores, masks), "dice": overlap}


def measures(
    model: nn.Module, images: torch.Tensor, masks: torch.Tensor
) -> dict[str, torch.Tensor]:
    scores = model(images)
    return {
        "val_loss": dice(scores, masks),
        "accuracy": ((scores > 0) == masks.bool()).float().mean(),
    }


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(UNet())
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 5)
        context.wrap_lr_scheduler(falling, LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return DataLoader(discs(48, 1), size, sampler=EpochShuffle(48), drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(discs(16, 2), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        metrics = losses(self.model, *batch)
        self.context.backward(metrics["loss"])
        self.context.step_optimizer(self.optimizer)
        return metrics

    def evaluate_batch(self, batch: Any) -> Any:
        return measures(self.model, *batch)


def plain() -> Outcome:
    seed_everything()
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

    def step(batch: Any, number: int) -> dict[str, torch.Tensor]:
        metrics = losses(model, *batch)
        metrics["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 6 == 5:
            falling.step()
        return metrics

    return train(
        [model], discs(48, 1), discs(16, 2), BATCH, step, lambda batch: measures(model, *batch)
    )
