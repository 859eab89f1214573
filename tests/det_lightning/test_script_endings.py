"""How scripts of Lightning's Trainer end, and as what."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.script_endings import ENDINGS, MEET, check_endings, check_storage_failure

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRAIN = (
    MEET
    + """
import lightning.pytorch as pl
import torch
import det_lightning

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        if self.global_step == 3:
            meet()
        return self.layer(batch).mean()
    def validation_step(self, batch, batch_idx):
        self.log("error", self.layer(batch).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

with core.init() as context:
    trainer = det_lightning.trainer(
        context, max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )
    loader = torch.utils.data.DataLoader
    trainer.fit(Model(), loader(torch.ones(16, 4), batch_size=8), loader(torch.ones(16, 4), batch_size=8))
"""
)


def test_every_ending_is_classified_as_for_a_trial_class(det: Any) -> None:
    check_endings(det, TRAIN, ENDINGS, metric="error")


@pytest.mark.parametrize(
    ("fate", "reason"), [("full", "No space left on device"), ("mount", "no route")]
)
def test_storage_failure_ends_it_resumably_in_one_line(det: Any, fate: str, reason: str) -> None:
    check_storage_failure(det, TRAIN, fate, reason, metric="error")
