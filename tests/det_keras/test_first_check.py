"""What the check before training finds in a TFKerasTrial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import Plugins
from det_keras.versions import keras
from det_node.first_check import check
from det_testing import Runs


@pytest.fixture
def found(plugins: Plugins, tmp_path: Path) -> Any:
    """Return the notices of the check of a trial with this model and these callbacks."""

    def found(compiled: Any, *callbacks: Any, **body: Any) -> list[str]:
        keras.backend.clear_session()
        parts = {"compiled": staticmethod(compiled), "callbacks": callbacks, **body}
        runs = Runs(plugins, type("Trial", (models.Line,), parts), tmp_path / "runs")
        scratch = tmp_path / "check"
        scratch.mkdir()
        info = runs.info(global_batch_size=models.BATCH)
        return check(runs.framework, runs._trial, info, scratch)

    return found


class Own(keras.Model):
    """Has a step of its own, whose logs are tensors; `trains` says what it does with a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "twice": 2 * tf.reduce_sum(self.dense.bias)}


class Still(Own):
    def train_step(self, data: Any) -> Any:
        return {"loss": tf.reduce_mean((self(data[0]) - data[1]) ** 2)}


class Vector(Own):
    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "each": tf.zeros(3)}


def made(kind: Any, **options: Any) -> Any:
    def compiled() -> Any:
        model = kind()
        model.compile("sgd", "mse", **options)
        return model

    return compiled


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [models.line, made(Own), made(Own, steps_per_execution=2)])
def test_a_trial_in_which_all_is_well_is_passed_without_a_word(found: Any, compiled: Any) -> None:
    assert found(compiled) == []


def test_weights_that_never_move_are_found(found: Any) -> None:
    (notice,) = found(made(Still))
    assert notice.startswith("training 2 batches changed no weight")


def test_a_training_metric_that_is_no_number_is_named(found: Any) -> None:
    with pytest.warns(UserWarning, match="'each'"):
        (notice,) = found(made(Vector))
    assert "metric 'each' is a" in notice
    assert notice.endswith(
        "of shape (3,); return a number, or a tensor or array that holds one;"
        " it is left out of the training reports"
    )
