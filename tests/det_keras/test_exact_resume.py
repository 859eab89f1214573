"""A run that is killed and resumed gives the numbers of one that was not, bit for bit.

That holds for each kind of data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.exact_resume import Disturbed

from det_keras.state import read_state
from det_keras.versions import KERAS_3, keras

SLOW = """
import os
import time

from det_keras.versions import keras
from model_def import DigitsTrial

PAUSE = float(os.environ.get("PAUSE", "0"))


class Pause(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch, logs=None):  # once for each execution
        time.sleep(self.seconds)


class SlowTrial(DigitsTrial):
    def keras_callbacks(self):
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.95)
        pause = Pause(PAUSE * self.context.get_hparam("steps_per_execution"))
        return [*super().keras_callbacks(), schedule, pause]
"""

KINDS = [("weighted", 4)]
if KERAS_3:  # what reads data is the same for both
    KINDS += [("tf.data", 1), ("arrays", 1), ("sequence", 1), ("adapter", 1)]


def state(directory: Path) -> Any:
    model = keras.models.load_model(str(directory / "model.keras"), compile=False)
    return read_state(directory), model.get_weights()


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "steps"), KINDS, ids=[kind for kind, _ in KINDS])
def test_killing_the_worker_at_random_moments_changes_nothing(
    kind: str, steps: int, det: Any, request: pytest.FixtureRequest, wait_until: Any
) -> None:
    kills = max(1, int(request.config.getoption("--kills")) // 3)  # for each kind of data
    disturbed = Disturbed.of(
        "digits_keras",
        SLOW,
        det,
        wait_until,
        state,
        hparams=f"lr: 0.05, data: {kind}, steps_per_execution: {steps}",
        # All of the kills find it training.
        length=max(120, 40 * kills),
        pause=0.06,
        metric="val_accuracy",
    )
    driver = disturbed.run()
    disturbed.wait_for_training(driver, 0)
    # Importing TensorFlow takes the first half of a run's seconds.
    disturbed.kill_workers(driver, kills, 9.0)
    disturbed.equals_the_undisturbed()
