"""Models as users bring them: modules, optimizers, data, and a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 8  # batches
Autocast = Callable[[], AbstractContextManager[Any]]
Backward = Callable[[torch.Tensor], Any]
Step = Callable[[torch.optim.Optimizer], Any]


class Images:
    """Small images in two classes.

    18 to train with, 9 to validate with, in batches of 4, so that the last ones are short.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        images, labels = torch.randn(27, 3, 8, 8, generator=generator), torch.arange(27) % 2
        images += labels.reshape(-1, 1, 1, 1)
        self.training = TensorDataset(images[:18], labels[:18])
        self.validation = TensorDataset(images[18:], labels[18:])


class Texts:
    """Sentences of 12 tokens that count up by one, or by two."""

    def __init__(self) -> None:
        starts, steps = torch.arange(27).reshape(-1, 1), 1 + torch.arange(27).reshape(-1, 1) % 2
        tokens = (starts + steps * torch.arange(12)) % 32
        self.training, self.validation = TensorDataset(tokens[:18]), TensorDataset(tokens[18:])


class Residual(nn.Module):
    """Two convolutions with normalizations, around which the input goes, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(inner))).relu()


def resnet(dropout: float = 0.0) -> nn.Module:
    stem = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Residual(8)]
    return nn.Sequential(
        *stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(8, 2)
    )


class User:
    """What a user has: modules, optimizers, and a step, with any way to go back and to step."""

    data: type = Images
    precision = "fp32"
    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scheduler: Any = None

    def train(self, batch: Any, autocast: Autocast, backward: Backward, step: Step) -> torch.Tensor:
        with autocast():
            loss = self.loss(batch)
        backward(loss)
        step(self.optimizers[0])
        return loss

    def loss(self, batch: Any) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.modules[0](images), labels)

    evaluate = loss

    def end(self) -> None:
        """Do what is to be done when training is over."""


class Cnn(User):
    """A residual network with batch normalization, momentum, weight decay and a batch schedule."""

    def __init__(self) -> None:
        self.modules = [resnet()]
        self.optimizers = [
            torch.optim.SGD(
                self.modules[0].parameters(),
                lr=0.05,
                momentum=0.9,
                weight_decay=1e-3,
                nesterov=True,
            )
        ]
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizers[0], T_max=LENGTH
        )


class Compiled(User):
    """The same network, with dropout, compiled."""

    def __init__(self) -> None:
        self.modules = [torch.compile(resnet(dropout=0.3), backend="aot_eager")]
        self.optimizers = [torch.optim.AdamW(self.modules[0].parameters(), lr=0.01)]


class Language(User):
    """A causal language model of Hugging Face's, with dropout, in bf16."""

    data, precision = Texts, "bf16"

    def __init__(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=32,
            n_positions=32,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.modules = [GPT2LMHeadModel(config)]
        self.optimizers = [torch.optim.AdamW(self.modules[0].parameters(), lr=0.01)]

    def loss(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.modules[0](input_ids=batch[0], labels=batch[0]).loss
        return loss

    evaluate = loss

    def continued(self) -> list[int]:
        """Return what the model makes of three tokens."""
        model: Any = self.modules[0].eval()
        tokens: list[int] = model.generate(
            torch.tensor([[3, 4, 5]]), max_new_tokens=8, do_sample=False, pad_token_id=0
        )[0].tolist()
        return tokens


class Gan(User):
    """A generator and a critic, with an optimizer each, both stepped in each batch."""

    def __init__(self) -> None:
        generator = nn.Sequential(
            nn.Linear(4, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, 3 * 8 * 8),
            nn.Unflatten(1, (3, 8, 8)),
        )
        critic = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * 8 * 8, 16),
            nn.LeakyReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 1),
        )
        self.modules = [generator, critic]
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.5, 0.9)) for net in self.modules
        ]

    def train(self, batch: Any, autocast: Autocast, backward: Backward, step: Step) -> torch.Tensor:
        generator, critic = self.modules
        fake = generator(torch.randn(len(batch[0]), 4))
        judged = self._judge(critic(batch[0]), 1.0) + self._judge(critic(fake.detach()), 0.0)
        backward(judged)
        step(self.optimizers[1])
        critic.requires_grad_(False)
        loss = self._judge(critic(fake), 1.0)
        backward(loss)
        step(self.optimizers[0])
        critic.requires_grad_(True)
        return loss

    def evaluate(self, batch: Any) -> torch.Tensor:
        fake: torch.Tensor = self.modules[0](torch.linspace(-1, 1, 4).expand(len(batch[0]), 4))
        return (fake - batch[0]).abs().mean()

    def _judge(self, scores: torch.Tensor, truth: float) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(
            scores, torch.full_like(scores, truth)
        )


class Averaged(User):
    """A network whose weights are averaged over time.

    The averages are evaluated, and take their place in the end.
    """

    def __init__(self) -> None:
        model = resnet()
        self.modules = [
            model,
            AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True),
        ]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]

    def train(self, batch: Any, autocast: Autocast, backward: Backward, step: Step) -> torch.Tensor:
        loss = super().train(batch, autocast, backward, step)
        averaged: Any = self.modules[1]
        averaged.update_parameters(self.modules[0])
        return loss

    def evaluate(self, batch: Any) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.modules[1](images), labels)

    def end(self) -> None:
        averaged: Any = self.modules[1]
        self.modules[0].load_state_dict(averaged.module.state_dict())


class Swa(User):
    """A network whose weights are averaged from its middle on, with a schedule of their own.

    In the end the averages take over.
    """

    def __init__(self) -> None:
        model = resnet()
        self.modules = [model, AveragedModel(model)]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]
        self.scheduler = SWALR(self.optimizers[0], swa_lr=0.01, anneal_epochs=LENGTH // 2)

    def train(self, batch: Any, autocast: Autocast, backward: Backward, step: Step) -> torch.Tensor:
        loss = super().train(batch, autocast, backward, step)
        averaged: Any = self.modules[1]
        if self.scheduler.last_epoch >= LENGTH // 2:
            averaged.update_parameters(self.modules[0])
        return loss

    def end(self) -> None:
        averaged: Any = self.modules[1]
        update_bn(DataLoader(self.data().training, batch_size=4), averaged)
        self.modules[0].load_state_dict(averaged.module.state_dict())


USERS: dict[str, type[User]] = {
    "cnn": Cnn,
    "language": Language,
    "gan": Gan,
    "averaged": Averaged,
    "swa": Swa,
    "compiled": Compiled,
}
