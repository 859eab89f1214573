"""Checkpoints without a saved model give the trial's estimator; those of Determined are TensorFlow's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.det_estimator.trials import Line, v1

from det_core import CheckpointError
from det_estimator import load_estimator_from_checkpoint_path


def answers() -> Any:
    return tf.data.Dataset.from_tensor_slices(tf.constant([2.0, 3.0])).batch(2)


CODE = """
import tensorflow as tf
from det_estimator import EstimatorTrial


class Halves(EstimatorTrial):
    def build_estimator(self):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(self.context.get_hparam("rate"))
        column = tf.feature_column.numeric_column("x")
        return tf.compat.v1.estimator.LinearRegressor([column], optimizer=self.context.wrap_optimizer(optimizer))

    def build_train_spec(self):
        raise AssertionError("nothing is trained")

    build_validation_spec = build_train_spec
"""


def pairs() -> Any:
    return tf.data.Dataset.from_tensors(({"x": tf.constant([[1.0], [2.0]])}, tf.constant([0.5, 1.0]))).repeat(60)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A checkpoint as Determined 0.17 saved them: what TensorFlow's estimator leaves, the code, and what it is of."""
    trained, checkpoint = tmp_path / "trained", tmp_path / "checkpoint"
    column, optimizer = tf.feature_column.numeric_column("x"), v1.train.GradientDescentOptimizer(0.1)
    v1.estimator.LinearRegressor([column], optimizer=optimizer, model_dir=str(trained)).train(pairs)
    checkpoint.mkdir()
    for file in (*trained.glob("model.ckpt-60.*"), trained / "checkpoint", trained / "graph.pbtxt"):
        shutil.copy(file, checkpoint)
    (checkpoint / "code").mkdir()
    (checkpoint / "code" / "model_def.py").write_text(CODE)
    facts = {
        "experiment_config": {"entrypoint": "model_def:Halves"},
        "hparams": {"rate": 0.1},
        "determined_version": "0.17.6",
    }
    (checkpoint / "metadata.json").write_text(json.dumps(facts))
    return checkpoint


def test_a_checkpoint_of_determined_gives_an_estimator_with_its_variables(old: Path) -> None:
    estimator = load_estimator_from_checkpoint_path(old)
    predicted = [float(each["predictions"][0]) for each in estimator.predict(lambda: pairs().take(1))]
    assert predicted == pytest.approx([0.5, 1.0], abs=0.1)
    assert estimator.evaluate(pairs, steps=1)["global_step"] == 60


def test_a_checkpoint_of_det_without_a_saved_model_gives_an_estimator(lab: Any) -> None:
    ran = lab(Line, 4)
    with lab.opened(ran.checkpoints[4]) as path:
        estimator = load_estimator_from_checkpoint_path(path, trial_class=Line)
        predicted = [float(each["y"]) for each in estimator.predict(answers)]
    weight = ran.validation[4]["weight"]
    assert predicted == pytest.approx([2 * weight, 3 * weight])


def test_a_directory_without_either_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither a saved model nor an estimator's variables"):
        load_estimator_from_checkpoint_path(tmp_path)


def test_a_name_is_of_a_saved_model(old: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no saved model 'x'; there are: none"):
        load_estimator_from_checkpoint_path(old, name="x")


def test_a_trial_class_of_another_kind_is_refused(old: Path) -> None:
    with pytest.raises(CheckpointError, match="is no EstimatorTrial"):
        load_estimator_from_checkpoint_path(old, trial_class=int)
