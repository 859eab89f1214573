"""A run of the example that is killed at random gives the numbers of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.exact_resume import Disturbed

SLOW = """
import os
import time

import lightning.pytorch as pl

from model_def import DigitsTrial


class Slow(pl.Callback):
    def on_train_batch_start(self, *args):
        time.sleep(float(os.environ.get("PAUSE", "0")))


class SlowTrial(DigitsTrial):
    def build_callbacks(self):
        return [Slow()]
"""


def state(directory: Path) -> Any:
    return torch.load(directory / "lightning.ckpt", weights_only=True)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_killing_the_worker_at_random_moments_changes_nothing(
    det: Any, request: pytest.FixtureRequest, wait_until: Any
) -> None:
    disturbed = Disturbed.of(
        "digits_lightning",
        SLOW,
        det,
        wait_until,
        state,
        hparams="lr: 0.1, workers: 1, augment: true",
        length=120,
        pause=0.05,
        more="optimizations: {aggregation_frequency: 2}\n",
    )
    kills = int(request.config.getoption("--kills"))
    disturbed.kill_workers(disturbed.run(), kills, 6.0)
    disturbed.equals_the_undisturbed()
