"""How scripts of det_torch's Trainer end, and as what."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.script_endings import ENDINGS, MEET, check_endings, check_storage_failure

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRAIN = (
    MEET
    + """
import torch
import det_torch
from det_torch import Batch, DataLoader, PyTorchTrial

class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(4, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
    def build_training_data_loader(self):
        return DataLoader(torch.ones(16, 4), batch_size=8)
    def build_validation_data_loader(self):
        return DataLoader(torch.ones(16, 4), batch_size=8)
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 3:
            meet()
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        return {"error": self.model(batch).mean()}

with det_torch.init() as context:
    trainer = det_torch.Trainer(Trial(context), context)
    trainer.fit(validation_period=Batch(2), max_length=Batch(6))
"""
)


def test_every_ending_is_classified_as_for_a_trial_class(det: Any) -> None:
    check_endings(det, TRAIN, ENDINGS, metric="error")


@pytest.mark.parametrize(
    ("fate", "reason"), [("full", "No space left on device"), ("mount", "no route")]
)
def test_storage_failure_ends_it_resumably_in_one_line(det: Any, fate: str, reason: str) -> None:
    check_storage_failure(det, TRAIN, fate, reason, metric="error")
