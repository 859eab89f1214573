"""Scripts of Lightning's Trainer that are struck at random: a campaign (`nox -s chaos`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_scripts import SLOW_DATA, Campaign

pytestmark = [pytest.mark.process, pytest.mark.thorough]

TRAIN = (
    SLOW_DATA
    + """
import lightning.pytorch as pl
import det_lightning
from det_core import core

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
    def validation_step(self, batch, batch_idx):
        self.log("error", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

with core.init() as context:
    pl.seed_everything(3)
    trainer = det_lightning.trainer(
        context, max_epochs=EPOCHS, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )
    loader = torch.utils.data.DataLoader
    trainer.fit(Model(), loader(Slow(), batch_size=8, shuffle=True), loader(Slow(), batch_size=32))
"""
)


def test_a_script_of_lightning_shows_nothing_of_what_struck_it(
    det: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    campaign = Campaign(det, tmp_path, pytestconfig.getoption("kills"))
    campaign.check(TRAIN.replace("EPOCHS", str(campaign.length(12, 5))), "error")


def test_lightning_script_saves_when_agent_or_driver_is_lost(det: Any, tmp_path: Path) -> None:
    Campaign(det, tmp_path, 2).check_losses(TRAIN.replace("EPOCHS", "20"), "error")
