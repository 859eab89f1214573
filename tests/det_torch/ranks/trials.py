"""Trials that several ranks train; imported by each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from det_torch import DataLoader, MetricReducer, PyTorchTrial
from det_torch.testing import OneVarTrial, Records


class Digits(torch.utils.data.Dataset[Any]):
    """Some of scikit-learn's digits, in double precision."""

    def __init__(self, first: int, count: int) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first : first + count], dtype=torch.float64) / 16
        self.labels = torch.tensor(labels[first : first + count])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class DigitsTrial(PyTorchTrial):
    """Two layers with a normalization, in double precision, with momentum and a schedule."""

    def __init__(self, context: Any) -> None:
        self.context = context
        model = nn.Sequential(
            nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10)
        ).double()
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        )

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
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        images, labels = batch
        scores = self.model(images)
        return {
            "val_loss": nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).double().mean(),
            "weight": self.model[0].weight.abs().sum(),
        }


class Seen(MetricReducer):
    """The records that were seen, of each rank."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def reset(self) -> None:
        self.values = []

    def update(self, batch: torch.Tensor) -> None:
        self.values += batch.flatten().tolist()

    def per_slot_reduce(self) -> list[float]:
        return self.values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> dict[str, Any]:
        return {f"rank {rank}": values for rank, values in enumerate(per_slot_metrics)}


class OddTrial(OneVarTrial):
    """Seven records in batches of one.

    An epoch that does not divide by two, in training as in validation.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seen = context.wrap_reducer(Seen())

    def build_training_data_loader(self) -> Any:
        return DataLoader(Records([float(n) for n in range(7)]), batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.seen.update(batch)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        self.seen.update(batch)
        return {**super().evaluate_batch(batch, batch_idx), "mean": batch.mean()}


class DrawingTrial(OneVarTrial):
    """Draws another number of random numbers on each rank, so that their generators part."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        torch.rand(self.context.distributed.rank + 1)
        return super().train_batch(batch, epoch_idx, batch_idx)


class WholeTrial(DigitsTrial):
    """Evaluates the whole validation set at once."""

    evaluate_batch = PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        count = sum(len(labels) for _, labels in data_loader)
        return {
            "val_loss": 0.0,
            "count": count,
            "rank": self.context.distributed.rank,
            "weight": 0.0,
        }


class Shards(torch.utils.data.IterableDataset[torch.Tensor]):
    """The records of one rank, which it reads itself; it knows where it is."""

    det_sharded = True

    def __init__(self, records: list[float]) -> None:
        self.records, self.at = records, 0

    def __iter__(self) -> Any:
        while self.at < len(self.records):
            self.at += 1
            yield torch.tensor([self.records[self.at - 1]])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ShardedTrial(OddTrial):
    """Sixteen records, of which the chief has five and the other rank eleven.

    Nine to validate, by torch's own sampler.
    """

    def build_training_data_loader(self) -> Any:
        records = [float(n) for n in range(16)]
        mine = records[:5] if self.context.distributed.rank == 0 else records[5:]
        return torch.utils.data.DataLoader(Shards(mine), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        data, ranks = Records([float(n) for n in range(9)]), self.context.distributed
        sampler = torch.utils.data.DistributedSampler(data, ranks.size, ranks.rank, shuffle=False)
        return torch.utils.data.DataLoader(data, batch_size=1, sampler=sampler)
