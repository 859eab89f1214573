"""Checkpoints without a saved model give the trial's estimator.

Those of Determined are TensorFlow's own.
"""

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
from det_estimator.load import export_saved_model, tensors


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
    return tf.data.Dataset.from_tensors(
        ({"x": tf.constant([[1.0], [2.0]])}, tf.constant([0.5, 1.0]))
    ).repeat(60)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A checkpoint as Determined 0.17 saved them.

    What TensorFlow's estimator leaves, the code, and what it is of.
    """
    trained, checkpoint = tmp_path / "trained", tmp_path / "checkpoint"
    column, optimizer = (
        tf.feature_column.numeric_column("x"),
        v1.train.GradientDescentOptimizer(0.1),
    )
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


def test_determined_checkpoint_loads_as_estimator_with_variables(old: Path) -> None:
    estimator = load_estimator_from_checkpoint_path(old)
    predicted = [
        float(each["predictions"][0]) for each in estimator.predict(lambda: pairs().take(1))
    ]
    assert predicted == pytest.approx([0.5, 1.0], abs=0.1)
    assert estimator.evaluate(pairs, steps=1)["global_step"] == 60


def test_checkpoint_without_saved_model_loads_as_estimator(lab: Any) -> None:
    ran = lab(Line, 4)
    with lab.opened(ran.checkpoints[4]) as path:
        estimator = load_estimator_from_checkpoint_path(path, trial_class=Line)
        predicted = [float(each["y"]) for each in estimator.predict(answers)]
    weight = ran.validation[4]["weight"]
    assert predicted == pytest.approx([2 * weight, 3 * weight])


def test_a_directory_without_either_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="holds neither a saved model nor an estimator's variables"
    ):
        load_estimator_from_checkpoint_path(tmp_path)


def test_a_name_is_of_a_saved_model(old: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no saved model 'x'; there are: none"):
        load_estimator_from_checkpoint_path(old, name="x")


def test_a_trial_class_of_another_kind_is_refused(old: Path) -> None:
    with pytest.raises(CheckpointError, match="is no EstimatorTrial"):
        load_estimator_from_checkpoint_path(old, trial_class=int)


@pytest.mark.parametrize("stamps", [["1642791420", "1642791500"], []])
def test_saved_model_loads_from_a_time_stamped_directory(tmp_path: Path, stamps: list[str]) -> None:
    """Determined wrote such directories."""
    for factor, stamp in enumerate(stamps or [""], 2):
        module: Any = tf.Module()
        module.factor = tf.Variable(float(factor))
        tf.saved_model.save(module, str(tmp_path / "receiver" / stamp))
    (tmp_path / "code").mkdir()
    shutil.copytree(tmp_path / "receiver", tmp_path / "code" / "1")
    model = load_estimator_from_checkpoint_path(tmp_path, name="receiver")
    assert (
        float(load_estimator_from_checkpoint_path(tmp_path).factor)
        == float(model.factor)
        == max(2, len(stamps) + 1)
    )
    export_saved_model(tmp_path, tmp_path / "exported")
    assert (tmp_path / "exported" / "saved_model.pb").is_file()


def test_paths_of_the_writing_machine_are_not_followed(old: Path, tmp_path: Path) -> None:
    """Even where such a path exists, it is of something else."""
    (old / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/trained/model.ckpt-0"\n')
    estimator = load_estimator_from_checkpoint_path(old)
    assert estimator.evaluate(pairs, steps=1)["global_step"] == 60
    assert tensors(old)["global_step"] == 60
    assert not (old / "eval").exists()


def test_a_given_trial_class_needs_no_description_of_the_trial(lab: Any) -> None:
    ran = lab(Line, 1)
    with lab.opened(ran.checkpoints[1]) as path:
        bare = Path(
            shutil.copytree(
                path, lab.root / "bare", ignore=shutil.ignore_patterns("*.json", "code")
            )
        )
    assert list(load_estimator_from_checkpoint_path(bare, trial_class=Line).predict(answers))
