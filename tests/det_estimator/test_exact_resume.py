"""A run that is paused, killed and resumed gives the numbers of one that was not, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.support.exact_resume import Disturbed

SLOW = """
import os
import time

import tensorflow as tf

from model_def import DigitsTrial


class Slow(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(float(os.environ.get("PAUSE", "0")))


class SlowTrial(DigitsTrial):
    def build_train_spec(self):
        return super().build_train_spec()._replace(hooks=[Slow()])
"""


def state(directory: Path) -> Any:
    """Return the variables of a checkpoint, and what else it holds."""
    reader = tf.train.load_checkpoint(str(directory))
    variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return variables, json.loads((directory / "det_estimator.json").read_text())


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("example", ["digits_tf_layers", "digits_estimator"])
def test_pauses_and_random_kills_of_workers_change_nothing(
    example: str, det: Any, request: pytest.FixtureRequest, wait_until: Any
) -> None:
    """Dense layers with momentum and a schedule, or convolutions with Adam.

    The latter have batch normalization. Both drop out and shuffle.
    """
    kills = int(request.config.getoption("--kills")) // 2 + 1
    disturbed = Disturbed.of(example, SLOW, det, wait_until, state, hparams="lr: 0.01")
    disturbed.pause_once()
    # Importing TensorFlow and building the graph take the first seconds.
    disturbed.kill_workers(disturbed.start("resume", "2", "-q"), kills, 10.0)
    assert det.json("show", "2")["trials"][0]["runs"] == 2 + kills
    disturbed.equals_the_undisturbed()
