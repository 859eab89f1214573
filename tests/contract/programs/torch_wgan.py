"""A Wasserstein GAN with a gradient penalty.

Two models, two optimizers, of which one steps at every second batch.
"""

from __future__ import annotations

from typing import Any

import torch
from tests.contract.programs.suite import Outcome
from tests.contract.programs.torch_parts import EpochShuffle, digits, seed_everything, train
from torch import nn

from det_torch import DataLoader, PyTorchTrial

BATCH = 8
TWO_RANKS = (0.2, "each rank draws noise for its part")


def build() -> tuple[nn.Module, nn.Module]:
    """Return a generator and a critic."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 64), nn.Sigmoid())
    critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.LayerNorm(32), nn.Linear(32, 1))
    return generator, critic


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.002, betas=(0.0, 0.9))


def penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """Return how far the critic's slopes are from 1, between real and false images."""
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    [slopes] = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slopes.norm(dim=1) - 1) ** 2).mean()


def critic_loss(generator: nn.Module, critic: nn.Module, real: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        fake = generator(torch.randn(len(real), 4))
    return critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)


def distance(
    generator: nn.Module, critic: nn.Module, real: torch.Tensor
) -> dict[str, torch.Tensor]:
    fake = generator(torch.linspace(-1, 1, 4 * len(real)).reshape(-1, 4))
    return {"val_loss": (critic(real).mean() - critic(fake).mean()).abs()}


class Trial(PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        self.generator, self.critic = map(context.wrap_model, build())
        self.steps_generator = context.wrap_optimizer(adam(self.generator))
        self.steps_critic = context.wrap_optimizer(adam(self.critic))

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return DataLoader(digits(0, 50), size, sampler=EpochShuffle(50), drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(digits(50, 16), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        real, _ = batch
        loss = critic_loss(self.generator, self.critic, real)
        self.context.backward(loss)
        self.context.step_optimizer(self.steps_critic)
        if batch_idx % 2 == 1:
            self.critic.requires_grad_(False)
            self.context.backward(-self.critic(self.generator(torch.randn(len(real), 4))).mean())
            self.context.step_optimizer(self.steps_generator)
            self.critic.requires_grad_(True)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return distance(self.generator, self.critic, batch[0])


def plain() -> Outcome:
    seed_everything()
    generator, critic = build()
    steps_generator, steps_critic = adam(generator), adam(critic)

    def step(batch: Any, number: int) -> dict[str, torch.Tensor]:
        real, _ = batch
        steps_critic.zero_grad()
        loss = critic_loss(generator, critic, real)
        loss.backward()
        steps_critic.step()
        if number % 2 == 1:
            steps_generator.zero_grad()
            critic.requires_grad_(False)
            (-critic(generator(torch.randn(len(real), 4))).mean()).backward()
            critic.requires_grad_(True)
            steps_generator.step()
        return {"loss": loss}

    return train(
        [generator, critic],
        digits(0, 50),
        digits(50, 16),
        BATCH,
        step,
        lambda batch: distance(generator, critic, batch[0]),
    )
