"""The conformance kit's models in Lightning: one of a single weight, and one with every kind of
state.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from det_lightning import LightningAdapter, snapshot
from det_testing import OneVar
from det_torch.testing import Augmented, Records, StrictModel, draw_as_rank


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
    """Trains the one-weight model. `det_testing.OneVar` computes the expected results."""

    def __init__(self, context: Any) -> None:
        self.settings = OneVar.of(context.get_hparams())
        super().__init__(context, lightning_module=self.build_module())

    def build_module(self) -> OneVarModule:
        """Return the module. A subclass may return another."""
        return OneVarModule(self.settings)

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


class StrictModule(pl.LightningModule):
    """Has every kind of state between two batches: of Lightning, PyTorch, NumPy and Python.

    An epoch has three batches.

    - The critic is stepped after every second batch, so that its gradients wait.
    - In epoch 1 the backbone is unfrozen and given to the optimizer, and the normalization is put
      into evaluation mode.
    """

    automatic_optimization = False

    def __init__(self, data: Augmented, rank: int = 0, size: int = 1) -> None:
        super().__init__()
        self.data, self.model, self.critic = data, StrictModel(), nn.Linear(1, 1)
        self._rank = rank
        # DDP never reduces the gradients of parameters that are frozen while it wraps the module.
        self.model.backbone.requires_grad_(size > 1)
        self.mean = MeanMetric()
        self.losses: list[torch.Tensor] = []
        self.by_parity: dict[int, list[str]] = defaultdict(list)
        self.seen, self.sums = 0, np.zeros(2)

    def configure_optimizers(self) -> Any:
        self.model.backbone.requires_grad_(False)
        draw_as_rank(self._rank)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        first = torch.optim.AdamW(trained, lr=np.float64(0.05), weight_decay=np.float64(0.1))
        second = torch.optim.SGD(self.critic.parameters(), lr=0.05, momentum=0.9)
        halved = torch.optim.lr_scheduler.StepLR(first, 2, gamma=0.5)
        falling = torch.optim.lr_scheduler.LambdaLR(
            second, lambda n: 0.5 * (1 + np.cos(np.pi * n / 20))
        )
        return [first, second], [halved, falling]

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            backbone = self.model.backbone.requires_grad_(True)
            self.trainer.optimizers[0].add_param_group(
                {"params": list(backbone.parameters()), "lr": 0.001}
            )
            self.model.norm.eval()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()  # type: ignore[attr-defined]
        halved, falling = self.lr_schedulers()  # type: ignore[misc]
        x, y = batch
        # Random draws like those of a user's trial.
        scores = self.model(x + 0.01 * random.random() + 0.01 * float(np.random.rand()))
        loss = nn.functional.mse_loss(scores, y)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        halved.step()
        judged = (self.critic(scores.detach()) ** 2).mean()
        self.manual_backward(judged)
        if batch_idx % 2 == 0:
            second.step()
            second.zero_grad()
            falling.step()
        self._collect(loss.detach(), batch_idx)
        self.log("judged", judged, on_step=True, on_epoch=True)
        return loss

    def _collect(self, loss: torch.Tensor, batch_idx: int) -> None:
        self.mean.update(loss)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        self.losses.append(loss)
        self.by_parity[batch_idx % 2].append(f"{loss:.3f}")
        self.seen += 1
        self.sums[batch_idx % 2] += loss.item()

    def on_train_epoch_end(self) -> None:
        self.log("collected", torch.stack(self.losses).mean() + self.sums.sum() / self.seen)
        self.log("even", float(len(self.by_parity[0])))
        self.losses.clear()
        self.by_parity.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self.model(x)
        self.log("val_loss", nn.functional.mse_loss(scores, y))
        self.log("val_judged", self.critic(scores).mean())


class StrictCallback(pl.Callback):
    """Changes the data in each epoch, draws from its own generator, and counts."""

    def __init__(self, data: Augmented) -> None:
        self._data, self._generator = data, np.random.default_rng(5)
        self._sums: dict[str, Any] = {"count": 0, "drawn": np.zeros(3, np.float32)}
        self._labels: dict[str, int] = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._data.level = trainer.current_epoch
        if trainer.current_epoch == 1:
            # No step reads this value, as the module steps itself.
            trainer.gradient_clip_val = 0.5

    def on_train_batch_end(self, *args: Any) -> None:
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
            "level": self._data.level,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums, self._labels = state_dict["sums"], state_dict["labels"]
        self._generator.bit_generator.state = state_dict["generator"]
        self._data.level = state_dict["level"]


class StrictTrial(LightningAdapter):
    """Trains the model with every kind of state, in shuffled order, with a worker that draws random
    numbers.
    """

    num_workers = 1

    def __init__(self, context: Any) -> None:
        self.data = Augmented()
        ranks = context.distributed
        module = StrictModule(self.data, ranks.rank, ranks.size)
        backend = context.run.backend
        # The critic does not contribute to the first loss, and the model not to the second. DDP
        # needs a flag for that. Horovod's strategy needs none.
        horovod = backend is not None and backend.name == "horovod"
        strategy = "auto" if horovod else "ddp_find_unused_parameters_true"
        super().__init__(context, lightning_module=module, strategy=strategy)

    def build_callbacks(self) -> list[pl.Callback]:
        return [StrictCallback(self.data)]

    def build_training_data_loader(self) -> Any:
        size = 4 // self.context.distributed.size
        return DataLoader(self.data, batch_size=size, shuffle=True, num_workers=self.num_workers)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(self.data, batch_size=4)


def contents(path: Any) -> dict[str, Any]:
    """Return all of a checkpoint that belongs to the trial."""
    lightning, det = snapshot.read(path)
    for own in det["ranks"]:
        # Lightning orders them by the first time that each was logged, so that their order
        # depends on when it validated.
        own["known"] = dict(sorted(own["known"].items()))
    return {"lightning": lightning, "det": det}
