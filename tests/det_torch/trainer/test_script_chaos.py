"""Scripts of det_torch's Trainer that are struck at random: a campaign (`nox -s chaos`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_scripts import SLOW_DATA, Campaign

pytestmark = [pytest.mark.process, pytest.mark.thorough]

TRAIN = (
    SLOW_DATA
    + """
import det_torch
from det_torch import Batch, DataLoader, PyTorchTrial

class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
    def build_training_data_loader(self):
        return DataLoader(Slow(), batch_size=8, shuffle=True)
    def build_validation_data_loader(self):
        return DataLoader(Slow(), batch_size=32)
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        return {"error": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}

with det_torch.init() as context:
    trainer = det_torch.Trainer(Trial(context), context)
    trainer.fit(validation_period=Batch(20), checkpoint_period=Batch(8), max_length=Batch(LENGTH))
"""
)


def test_a_script_of_the_trainer_shows_nothing_of_what_struck_it(
    det: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    campaign = Campaign(det, tmp_path, pytestconfig.getoption("kills"))
    campaign.check(TRAIN.replace("LENGTH", str(campaign.length(100, 40))), "error")


def test_trainer_script_saves_when_agent_or_driver_is_lost(det: Any, tmp_path: Path) -> None:
    Campaign(det, tmp_path, 2).check_losses(TRAIN.replace("LENGTH", "200"), "error")
