"""Checkpoints of Determined's Estimator trials that `det migrate` has copied.

They load, and new trials start from their variables. Their files are those that TensorFlow's own
estimator leaves, as Determined copied them, with the saved model that it exported.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator.trials import v1

from det_core.errors import DetError
from det_driver.client import Client

pytest.importorskip("determined")
pytest.importorskip("det_migrate")
from tests.det_migrate.eras import SECRET, STORAGE, UUIDS, at_least
from tests.det_migrate.imported import import_copied, invoke, one_trial

CODE = """
import os
import numpy as np
import tensorflow as tf
from determined.estimator import EstimatorTrial


def pairs():
    x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, 3 * x + 1)).repeat().batch(16)


def features():
    return tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.compat.v1.placeholder(tf.float32, [None, 1])}
    )()


def estimator(adam, **more):
    return tf.compat.v1.estimator.LinearRegressor(
        [tf.feature_column.numeric_column("x")], optimizer=adam, **more
    )


class Begin(tf.estimator.SessionRunHook):
    def after_create_session(self, session, coord):
        variables = tf.compat.v1.trainable_variables()
        values = zip(variables, session.run(variables))
        np.savez(os.environ["SEEN_WEIGHTS"], **{each.op.name: value for each, value in values})


class Line(EstimatorTrial):
    def __init__(self, context):
        self.context = context

    def build_estimator(self):
        adam = tf.compat.v1.train.AdamOptimizer(self.context.get_hparam("lr"))
        return estimator(self.context.wrap_optimizer(adam))

    def build_train_spec(self):
        return tf.estimator.TrainSpec(lambda: self.context.wrap_dataset(pairs()), hooks=[Begin()])

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(lambda: self.context.wrap_dataset(pairs()), steps=4)

    def build_serving_input_receiver_fns(self):
        return {"serving": features}
"""
HPARAMS = {"lr": 0.05, "global_batch_size": 16}
ERAS = {"0.12.0": "serving", "0.17.0": "model", "0.28.1": "model serving"}
"""What a checkpoint of each holds: the estimator's directory, a saved model, or both."""


def save(directory: Path, era: str, trained: Path) -> dict[str, Any]:
    """Write a checkpoint of 100 batches with the files of an era, and return its variables."""
    code: dict[str, Any] = {}
    exec(CODE, code)
    made = code["estimator"](v1.train.AdamOptimizer(0.05), model_dir=str(trained))
    made.train(code["pairs"], steps=100)
    directory.mkdir(parents=True)
    if "model" in ERAS[era]:
        shutil.copytree(trained, directory, dirs_exist_ok=True)
        # Determined wrote the place on its own machine into this file.
        (directory / "checkpoint").write_text('model_checkpoint_path: "/tmp/x/model.ckpt-100"\n')
    if "serving" in ERAS[era]:
        made.export_saved_model(str(directory / "serving"), code["features"])
    (directory / "code").mkdir()
    (directory / "code" / "model_def.py").write_text(CODE)
    if at_least(era, "0.28.1"):
        config = {"entrypoint": "model_def:Line", "checkpoint_storage": STORAGE}
        facts = {"trial_type": "EstimatorTrial", "experiment_config": config, "hparams": HPARAMS}
        (directory / "load_data.json").write_text(
            json.dumps({**facts, "trial_cls_spec": "model_def:Line"})
        )
        (directory / "metadata.json").write_text(json.dumps({"steps_completed": 100}))
    return {name: made.get_variable_value(name) for name in made.get_variable_names()}


def copy(home: Path, era: str, state: str = "ERROR") -> list[str]:
    """Import experiment 3, copy its checkpoint, and return what that prints."""
    made = one_trial(
        era,
        home.parent / "shared",
        {"model_def.py": CODE},
        entrypoint="model_def:Line",
        hparams=HPARAMS,
        length=400,
        state=state,
        searcher={"metric": "average_loss"},
    )
    return import_copied(home, made, "--to", str(home.parent / "kept")).stdout.splitlines()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEEN_WEIGHTS", str(tmp_path / "seen.npz"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "home"
    sys.modules.pop("model_def", None)


@pytest.mark.parametrize("era", ERAS)
def test_copied_checkpoint_of_every_era_loads(home: Path, tmp_path: Path, era: str) -> None:
    from determined.experimental import client

    stored = save(tmp_path / "shared" / UUIDS[0], era, tmp_path / "trained")
    assert copy(home, era) == [
        "copied 1 checkpoints of experiment 3",
        "it cannot be resumed: of a checkpoint of estimator, det reads the weights only; start"
        " another with searcher.source_trial_id",
    ]
    loaded = client.get_checkpoint(UUIDS[0]).load()
    weight, bias = (stored[f"linear/linear_model/{name}"] for name in ("x/weights", "bias_weights"))
    x = np.array([[2.0], [3.0]], "float32")
    if "serving" in ERAS[era]:
        predicted = loaded.signatures["predict"](x=tf.constant(x))["predictions"].numpy()
    else:
        data = tf.data.Dataset.from_tensors
        predicted = [each["predictions"] for each in loaded.predict(lambda: data({"x": x}))]
    assert np.allclose(predicted, x * weight + bias)
    copied = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert copied
    assert not [path for path in copied if SECRET.encode() in path.read_bytes()]


@pytest.mark.process
@pytest.mark.parametrize("era", ERAS)
def test_new_trial_starts_from_weights_of_every_era(home: Path, tmp_path: Path, era: str) -> None:
    """Estimators of TensorFlow divide their variables into parts, which are saved as one."""
    stored = save(tmp_path / "shared" / UUIDS[0], era, tmp_path / "trained")
    copy(home, era, state="COMPLETED")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_def.py").write_text(CODE)
    config = {
        "name": "new",
        "entrypoint": "model_def:Line",
        "hyperparameters": HPARAMS,
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(tmp_path / "kept")},
        "searcher": {
            **{"name": "single", "metric": "average_loss", "source_trial_id": 5},
            "max_length": {"batches": 100},
        },
    }
    (tmp_path / "new.json").write_text(json.dumps(config))
    words = ("run", tmp_path / "new.json", tmp_path / "model", "--in-process", "--quiet")
    done = invoke(home, *words)
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "seen.npz") as seen:
        assert sorted(seen.files) == [
            "linear/linear_model/bias_weights/part_0",
            "linear/linear_model/x/weights/part_0",
        ]
        for name in seen.files:
            assert np.array_equal(seen[name], stored[name.removesuffix("/part_0")])
    [trial] = Client(home).get_experiment(4).list_trials()
    assert (trial.state, trial.batches) == ("COMPLETED", 100)


def test_checkpoint_of_another_model_is_refused_in_a_line(home: Path, tmp_path: Path) -> None:
    save(tmp_path / "shared" / UUIDS[0], "0.17.0", tmp_path / "trained")
    copy(home, "0.17.0")
    with pytest.raises(DetError, match="holds no saved model 'other'; there are: none") as caught:
        Client(home).get_checkpoint(UUIDS[0]).load(name="other")
    assert "\n" not in str(caught.value)
