"""A LightningAdapter as Determined's users wrote it, but for the name of Lightning's package."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("lightning")
pytest.importorskip("sklearn")

MODULE = """
    import lightning.pytorch as pl
    import torch
    from torch import nn
    from torch.nn import functional as F


    class LightningDigits(pl.LightningModule):
        def __init__(self, learning_rate, hidden):
            super().__init__()
            self.save_hyperparameters()
            self.layers = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10))

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, batch_idx):
            x, y = batch
            return {"loss": F.cross_entropy(self(x), y)}

        def validation_step(self, batch, batch_idx):
            x, y = batch
            output = self(x)
            return {"val_loss": F.cross_entropy(output, y), "accuracy": (output.argmax(1) == y).float().mean()}

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]
"""
MODEL = """
    import torch
    from sklearn.datasets import load_digits

    from determined.pytorch import DataLoader, PyTorchTrialContext
    from determined.pytorch.lightning import LightningAdapter
    from module import LightningDigits


    def digits(train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1200) if train else slice(1200, None)
        return torch.utils.data.TensorDataset(
            torch.tensor(images[part] / 16, dtype=torch.float32), torch.tensor(labels[part])
        )


    class DigitsTrial(LightningAdapter):
        def __init__(self, context: PyTorchTrialContext) -> None:
            self.context = context
            lm = LightningDigits(context.get_hparam("learning_rate"), context.get_hparam("hidden"))
            super().__init__(context, lightning_module=lm)

        def build_training_data_loader(self) -> DataLoader:
            return DataLoader(digits(True), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

        def build_validation_data_loader(self) -> DataLoader:
            return DataLoader(digits(False), batch_size=self.context.get_per_slot_batch_size())
"""
CONFIG = """
    name: lightning
    entrypoint: model_def:DigitsTrial
    hyperparameters: {learning_rate: 0.005, hidden: 32, global_batch_size: 32}
    searcher: {name: single, metric: val_loss, max_length: {epochs: 3}}
    max_restarts: 0
"""


def test_an_adapter_around_a_module(det: Any, write: Any) -> None:
    write(const__yaml=CONFIG, model_def__py=MODEL, module__py=MODULE)
    det("e", "create", "const.yaml", ".", "-f")
    last = det.metrics(1, "validation")[-1]
    assert last["accuracy"] > 0.7
    assert last["val_loss"] < 1.5
