"""A run that is killed and resumed gives the numbers of one that was left alone, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.exact_resume import Disturbed

SLOW = """
import os
import time

from model_def import DigitsTrial


class SlowTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().train_batch(batch, epoch_idx, batch_idx)
"""


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--kills"))


def state(directory: Path) -> Any:
    return torch.load(directory / "state_dict.pth", weights_only=True)


@pytest.fixture
def disturbed(det: Any, wait_until: Any) -> Disturbed:
    """The digits, augmented in the loader's workers."""
    hparams = "lr: 0.05, workers: 2, augment: true"
    return Disturbed.of("digits_torch", SLOW, det, wait_until, state, hparams=hparams)


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_killing_the_worker_at_random_moments_changes_nothing(
    disturbed: Disturbed, kills: int
) -> None:
    disturbed.kill_workers(disturbed.run(), kills)
    disturbed.equals_the_undisturbed()


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_killing_the_driver_at_random_moments_changes_nothing(
    disturbed: Disturbed, kills: int
) -> None:
    disturbed.kill_drivers(kills)
    disturbed.equals_the_undisturbed()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_pausing_at_any_batch_and_resuming_changes_nothing(disturbed: Disturbed) -> None:
    disturbed.pause_once()
    disturbed.det("resume", "2", "-q")
    assert disturbed.det.json("show", "2")["trials"][0]["runs"] == 2
    disturbed.equals_the_undisturbed()
