"""Scripts of Keras's `fit` that are struck at random: a campaign (`nox -s chaos`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_scripts import Campaign

pytestmark = [pytest.mark.process, pytest.mark.thorough]

TRAIN = """
import time
import numpy as np
from det_core import core
from det_keras import DeterminedCallback
from det_keras.versions import keras

class Pause(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(0.2)

x = np.linspace(0, 1, 256).reshape(64, 4).astype("float32")
y = x.sum(axis=1)
with core.init() as context:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    callback = DeterminedCallback(context, context.info.latest_checkpoint, context.info.trial.trial_id)
    model.fit(x, y, batch_size=16, epochs=EPOCHS, shuffle=False, validation_data=(x, y), callbacks=[callback, Pause()])
"""


def test_a_script_of_keras_shows_nothing_of_what_struck_it(
    det: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    campaign = Campaign(det, tmp_path, pytestconfig.getoption("kills"))
    campaign.check(TRAIN.replace("EPOCHS", str(campaign.length(20, 4))), "val_loss")


def test_keras_script_saves_when_agent_or_driver_is_lost(det: Any, tmp_path: Path) -> None:
    Campaign(det, tmp_path, 2).check_losses(TRAIN.replace("EPOCHS", "25"), "val_loss")
