"""The conformance kit's models in PyTorch: one of a single weight, and one with every kind of
state.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from det_testing import OneVar
from det_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial


class Records(Dataset[torch.Tensor]):
    """Records of one number, which is also the label."""

    def __init__(self, xs: list[float]) -> None:
        self._xs = torch.tensor(xs)

    def __len__(self) -> int:
        return len(self._xs)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._xs[index].reshape(1)


class OneVarTrial(PyTorchTrial):
    """Trains the one-weight model. `det_testing.OneVar` computes the expected results."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())
        self.model = context.wrap_model(self.build_model())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=self.settings.lr)
        )

    @staticmethod
    def build_model() -> torch.nn.Module:
        """Return the model as it is before the first batch. A subclass may return another."""
        linear = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(linear.weight)
        return linear

    def build_training_data_loader(self) -> Any:
        xs = [
            x
            for batch in range(self.settings.batches_per_epoch)
            for x in self.settings.records(batch)
        ]
        return DataLoader(
            Records(xs),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=self.settings.shuffle,
        )

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records(self.settings.validation_records()), batch_size=2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        labels = batch
        if self.settings.noise:
            labels = batch * (1 + self.settings.noise * (2 * torch.rand_like(batch) - 1))
        loss = ((labels - self.model(batch)) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        weight = next(iter(self.model.parameters())).detach().squeeze()
        return {"val_loss": ((batch - self.model(batch)) ** 2).mean(), "weight": weight}


class Augmented(Dataset[Any]):
    """Twelve records with noise from each library's generator. The noise grows with `level`."""

    def __init__(self) -> None:
        self.level = 0
        self._xs = torch.randn(12, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self._xs)

    def __getitem__(self, index: int) -> Any:
        x = self._xs[index]
        # Random draws like those of a user's trial.
        noise = torch.rand(6) + float(np.random.rand()) + random.random()
        return x + (1 + self.level) * 0.1 * noise, x[:1] * 2


class Turned(nn.Module):
    """Multiplies by a matrix, which is stored transposed since version 2.

    It transposes the matrix of older states.
    """

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        if local_metadata.get("version", 1) < 2:
            state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"].t()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def draw_as_rank(rank: int) -> None:
    """Draw a random number of each library on other ranks than the chief.

    Afterwards no two ranks have the same state of a generator.
    """
    for _ in range(rank):
        torch.rand(1), np.random.rand(), random.random()


class StrictModel(nn.Module):
    """Has a frozen backbone, a normalization, dropout, and a buffer that each step assigns."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.norm = Turned().requires_grad_(False), nn.BatchNorm1d(6)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(6, 1)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.norm(self.backbone(x - self.centre))))
        if self.training:
            self.centre = self.centre * 0.9 + x.detach().mean(0) * 0.1
        return out


class StrictTrial(PyTorchTrial):
    """Has every kind of state between two batches: of PyTorch, NumPy, Python and a user's callback.

    An epoch has three batches.

    - A second model is stepped after every second batch, so that its gradients wait.
    - The scaler skips the step of batch 2.
    - In epoch 1 the backbone of the first model is unfrozen and given to the optimizer, and its
      normalization is put into evaluation mode.
    """

    num_workers = 1

    def __init__(self, context: Any) -> None:
        self.context, self.data = context, Augmented()
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        )
        self.model, self.critic = (
            context.wrap_model(StrictModel()),
            context.wrap_model(nn.Linear(1, 1)),
        )
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.first = context.wrap_optimizer(
            torch.optim.AdamW(trained, lr=np.float64(0.05), weight_decay=np.float64(0.1))
        )
        self.second = context.wrap_optimizer(
            torch.optim.SGD(self.critic.parameters(), lr=0.05, momentum=0.9)
        )
        halved = torch.optim.lr_scheduler.StepLR(self.first, 1, gamma=0.5)
        falling = torch.optim.lr_scheduler.LambdaLR(
            self.second, lambda n: 0.5 * (1 + np.cos(np.pi * n / 20))
        )
        modes = LRScheduler.StepMode
        context.wrap_lr_scheduler(halved, modes.STEP_EVERY_OPTIMIZER_STEP, frequency=2)
        context.wrap_lr_scheduler(falling, modes.STEP_EVERY_BATCH)

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"strict": StrictCallback(self)}

    def build_training_data_loader(self) -> Any:
        draw_as_rank(self.context.distributed.rank)
        size = 4 // self.context.distributed.size
        return DataLoader(self.data, batch_size=size, shuffle=True, num_workers=self.num_workers)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(self.data, batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        x, y = batch
        # Random draws like those of a user's trial.
        scores = self.model(x + 0.01 * random.random() + 0.01 * float(np.random.rand()))
        loss = nn.functional.mse_loss(scores, y)
        self.context.backward(self.scaler.scale(loss) * (float("inf") if batch_idx == 2 else 1.0))
        self.context.step_optimizer(self.first, scaler=self.scaler)
        self.scaler.update()
        judged = (self.critic(scores.detach()) ** 2).mean()
        self.context.backward(judged)
        if batch_idx % 2 == 0:
            self.context.step_optimizer(self.second)
        return {"loss": loss, "judged": judged}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        x, y = batch
        scores = self.model(x)
        return {"val_loss": nn.functional.mse_loss(scores, y), "judged": self.critic(scores).mean()}


class StrictCallback(PyTorchCallback):
    """Changes the data and the model in each epoch, draws from its own generator, and counts."""

    def __init__(self, trial: StrictTrial) -> None:
        self._trial, self._generator = trial, np.random.default_rng(5)
        self._sums: dict[str, Any] = {"count": 0, "drawn": np.zeros(3, np.float32)}
        self._labels: dict[str, int] = {}

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self._trial.data.level = epoch_idx
        if epoch_idx == 1:
            backbone = self._trial.model.backbone.requires_grad_(True)
            self._trial.first.add_param_group({"params": list(backbone.parameters()), "lr": 0.001})
            self._trial.model.norm.eval()

    def on_before_optimizer_step(self, parameters: Any) -> None:
        self._sums["count"] += 1
        self._sums["drawn"] += self._generator.random(3, np.float32)
        label = "abcde"[self._sums["count"] * 3 % 5]
        self._labels.setdefault(label, len(self._labels))

    def state_dict(self) -> dict[str, Any]:
        generator = self._generator.bit_generator.state
        return {
            "sums": self._sums,
            "labels": self._labels,
            "generator": generator,
            "level": self._trial.data.level,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums, self._labels = state_dict["sums"], state_dict["labels"]
        self._generator.bit_generator.state = state_dict["generator"]
        self._trial.data.level = state_dict["level"]


def contents(path: Any) -> dict[str, Any]:
    """Return all of a checkpoint that belongs to the trial."""
    from det_torch import state

    return state.load(path)
