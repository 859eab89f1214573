"""How scripts of Keras's `fit` end, and as what."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.script_endings import ENDINGS, MEET, check_endings, check_storage_failure

pytestmark = [pytest.mark.process, pytest.mark.slow]

TRAIN = (
    MEET
    + """
import numpy as np
from det_keras import DeterminedCallback
from det_keras.versions import keras

class Meet(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            meet()

x, y = np.ones((16, 4), "float32"), np.ones(16, "float32")
with core.init() as context:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = DeterminedCallback(context, context.info.latest_checkpoint, context.info.trial.trial_id)
    model.fit(x, y, batch_size=8, epochs=3, validation_data=(x, y), callbacks=[callback, Meet()])
"""
)


def test_every_ending_is_classified_as_for_a_trial_class(det: Any) -> None:
    check_endings(det, TRAIN, ENDINGS, metric="val_loss")


@pytest.mark.parametrize(
    ("fate", "reason"), [("full", "No space left on device"), ("mount", "no route")]
)
def test_storage_failure_ends_it_resumably_in_one_line(det: Any, fate: str, reason: str) -> None:
    check_storage_failure(det, TRAIN, fate, reason, metric="val_loss")
