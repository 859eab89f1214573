"""The conformance kit's one-weight model, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from det_testing import OneVar
from det_torch import DataLoader, PyTorchTrial


class Records(Dataset[torch.Tensor]):
    """Records of one number, which is its own label."""

    def __init__(self, xs: list[float]) -> None:
        self._xs = torch.tensor(xs)

    def __len__(self) -> int:
        return len(self._xs)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._xs[index].reshape(1)


class OneVarTrial(PyTorchTrial):
    """Trains the one-weight model; `det_testing.OneVar` says what must come of it."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())
        self.model = context.wrap_model(self.build_model())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=self.settings.lr))

    @staticmethod
    def build_model() -> torch.nn.Module:
        """Return the model as it is before the first batch; an heir may return another."""
        linear = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(linear.weight)
        return linear

    def build_training_data_loader(self) -> Any:
        xs = [x for batch in range(self.settings.batches_per_epoch) for x in self.settings.records(batch)]
        return DataLoader(Records(xs), batch_size=self.context.get_per_slot_batch_size(), shuffle=self.settings.shuffle)

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
