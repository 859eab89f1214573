"""A small transformer on scikit-learn's digits.

Its parameters are divided among ranks in each way that there is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from det_torch import DataLoader, PyTorchTrial


class Digits(torch.utils.data.Dataset[Any]):
    """Some of scikit-learn's digits, as eight rows each."""

    def __init__(self, first: int, count: int) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first : first + count]).reshape(-1, 8, 8) / 16
        self.labels = torch.tensor(labels[first : first + count])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class Rows(nn.Module):
    """Attention over the rows of an image.

    Ten classes, so that not every parameter can be divided evenly.
    """

    def __init__(self, width: int = 16, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        layer = [
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
            for _ in range(layers)
        ]
        self.layers = nn.ModuleList(layer)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)
        # Single precision differs by more than 1e-6 after some steps, in whatever order one adds.
        self.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.embed(images)
        for layer in self.layers:
            found = layer(found)
        scores: torch.Tensor = self.head(self.norm(found.mean(dim=1)))
        return scores


class RowsTrial(PyTorchTrial):
    """AdamW with a schedule and clipping by the norm, as far as the hyperparameters ask for it."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(self.build(context.get_hparams()))
        kind = getattr(torch.optim, context.get_hparams().get("optimizer", "AdamW"))
        self.optimizer = context.wrap_optimizer(kind(self.model.parameters(), lr=0.01))
        decay = torch.optim.lr_scheduler.StepLR(self.optimizer, 20, 0.9)
        context.wrap_lr_scheduler(decay, context_step_mode())

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        return Rows(dropout=hparams.get("dropout", 0.0))

    def build_training_data_loader(self) -> Any:
        return DataLoader(
            Digits(0, 640), batch_size=self.context.get_per_slot_batch_size(), shuffle=True
        )

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Digits(640, 150), batch_size=50)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.step()
        return {"loss": loss}

    def step(self) -> None:
        clip = self.context.get_hparams().get("clip")
        clipped = (
            (lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, clip)) if clip else None
        )
        self.context.step_optimizer(self.optimizer, clip_grads=clipped)

    def evaluate_batch(self, batch: Any) -> Any:
        images, labels = batch
        scores = self.model(images)
        return {
            "val_loss": nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).double().mean(),
        }


def context_step_mode() -> Any:
    from det_torch import LRScheduler

    return LRScheduler.StepMode.STEP_EVERY_BATCH


class Turned(nn.Module):
    """Stores its matrix transposed since version 2, and transposes that of older states."""

    _version = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        return found @ self.weight

    def _load_from_state_dict(
        self, saved: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        if local_metadata.get("version", 1) < 2:
            saved[f"{prefix}weight"] = saved[f"{prefix}weight"].t()
        super()._load_from_state_dict(saved, prefix, local_metadata, *rest)


class OddRows(Rows):
    """Assigns a buffer in each step, and has a module with a version and a frozen layer."""

    centre: torch.Tensor

    def __init__(self, width: int = 16) -> None:
        super().__init__(width)
        self.turned = Turned(width)
        self.register_buffer("centre", torch.zeros(width))
        self.double()
        self.embed.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.embed(images)
        for layer in self.layers:
            found = layer(found)
        found = self.turned(found.mean(dim=1) - self.centre)
        if self.training:
            self.centre = self.centre * 0.9 + found.detach().mean(dim=0) * 0.1
        scores: torch.Tensor = self.head(self.norm(found))
        return scores


class OddTrial(RowsTrial):
    """Its first layer thaws with batch 2."""

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        return OddRows()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 2:
            self.model.embed.requires_grad_(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class GrownTrial(RowsTrial):
    """Gives the optimizer its last layer with batch 1."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        head = {id(parameter) for parameter in self.model.head.parameters()}
        first = [each for each in self.model.parameters() if id(each) not in head]
        self.context.optimizers.clear()
        self.context.lr_schedulers.clear()
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(first, lr=0.01))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 1:
            self.optimizer.add_param_group({"params": list(self.model.head.parameters())})
        return super().train_batch(batch, epoch_idx, batch_idx)


class OwnTrial(RowsTrial):
    """The trial divides its model itself."""

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh

        model = Rows()
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        fsdp.fully_shard(model, mesh=mesh)
        return model


class LeanTrial(RowsTrial):
    """Blocks compute their activations twice."""

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        model = Rows()
        kind = nn.TransformerEncoderLayer
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, kind))
        return model


class AveragedTrial(RowsTrial):
    """The weights' moving average is evaluated."""

    def __init__(self, context: Any) -> None:
        self.context = context
        model = Rows()
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        self.model, self.averaged = context.wrap_model(model), context.wrap_model(averaged)
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))

    def step(self) -> None:
        super().step()
        self.averaged.update_parameters(self.model)

    def evaluate_batch(self, batch: Any) -> Any:
        images, labels = batch
        return {"val_loss": nn.functional.cross_entropy(self.averaged(images), labels)}


class SingleTrial(RowsTrial):
    """In single precision, as half precision is made from it."""

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        return Rows(dropout=hparams.get("dropout", 0.0)).float()

    def build_training_data_loader(self) -> Any:
        return DataLoader(Single(Digits(0, 640)), batch_size=32, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Single(Digits(640, 150)), batch_size=50)


class Single(torch.utils.data.Dataset[Any]):
    """The same images in single precision."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        image, label = self.digits[index]
        return image.float(), label


class MixedTrial(RowsTrial):
    """Divided along one dimension of a mesh, copied along the other; rank 1 may go astray."""

    def build(self, hparams: dict[str, Any]) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh

        model = Rows()
        size = torch.distributed.get_world_size()
        fsdp.fully_shard(
            model, mesh=init_device_mesh("cpu", (size, 1), mesh_dim_names=("copied", "divided"))
        )
        return model

    def step(self) -> None:
        super().step()
        if self.context.get_hparams().get("astray") and self.context.distributed.rank == 1:
            with torch.no_grad():
                next(self.model.parameters()).to_local().add_(1)


class IdleTrial(RowsTrial):
    """Rank 1 leaves a step out, so that its part is of another model than that of rank 0."""

    def step(self) -> None:
        if self.context.distributed.rank == 0 or self.context.current_train_batch() != 1:
            super().step()


class Wide(nn.Module):
    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = found + self.down(torch.relu(self.up(found)))
        return result


class WideTrial(RowsTrial):
    """Nineteen million parameters, first made without memory.

    What a rank holds of them and has needed is measured.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        with torch.device("meta"):
            blocks = nn.Sequential(*(Wide() for _ in range(16)))
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 768), blocks, nn.Linear(768, 10))
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins again
        self.before = memory("VmRSS")
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=0.001, foreach=False)
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images.float()), labels)
        self.context.backward(loss)
        self.step()
        state = [value for of in self.optimizer.state.values() for value in of.values()]
        held = [
            tensor.to_local() if hasattr(tensor, "to_local") else tensor
            for tensor in (*self.model.parameters(), *state)
        ]
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in held
        }
        return {"loss": loss, "held": sum(storages.values()), "peak": memory("VmHWM") - self.before}

    def evaluate_batch(self, batch: Any) -> Any:
        images, labels = batch
        return {"val_loss": nn.functional.cross_entropy(self.model(images.float()), labels)}


def memory(name: str) -> int:
    """What the kernel says of this process, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
