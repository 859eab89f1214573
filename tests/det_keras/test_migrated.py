"""Checkpoints of Determined's Keras trials that `det migrate` has copied.

They load, and new trials start from their weights. Their files are those that Keras 2 wrote: here
and now, or, for Keras 3, those that lie beside `old_checkpoints.py`.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.det_keras.old_checkpoints import FORMATS, MADE, OldTrial, filled, values

from det_core.errors import CheckpointError, StoreError
from det_core.train.load_data import loading_run
from det_driver.client import Client
from det_driver.driver import reopen
from det_driver.store import Store
from det_keras import load_model_from_checkpoint_path
from det_keras.context import TFKerasTrialContext
from det_keras.versions import KERAS_3, keras

pytest.importorskip("determined")
pytest.importorskip("det_migrate")
from tests.det_migrate.eras import SECRET, STORAGE, UUIDS, at_least
from tests.det_migrate.imported import import_copied, invoke, one_trial

MODEL = """
    inputs = keras.Input((4, 3))
    hidden = keras.layers.LSTM(units, name="recurrent")(inputs)
    hidden = keras.layers.BatchNormalization(name="statistics")(hidden)
    layers = [keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)]
    model = keras.Model(inputs, keras.Sequential([keras.Input((2,)), *layers])(hidden))
"""
TRIAL = f"""
import os
import numpy as np
from determined.keras import TFKerasTrial, callbacks
from tensorflow import keras


class Begin(callbacks.Callback):
    def on_train_begin(self, logs=None):
        np.savez(os.environ["SEEN_WEIGHTS"], *self.model.get_weights())


def made(units):{MODEL}    return model


class Reader(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(made(self.context.get_hparam("units")))
        sgd = self.context.wrap_optimizer(keras.optimizers.SGD(self.context.get_hparam("lr")))
        model.compile(sgd, "mse", metrics=["mae"])
        return model

    def keras_callbacks(self):
        return [Begin()]

    def build_training_data_loader(self):
        return np.zeros((16, 4, 3), "float32"), np.zeros((16, 1), "float32")

    build_validation_data_loader = build_training_data_loader
"""
SCRIPT = f"""
import os
import determined as det
import numpy as np
from determined.keras import DeterminedCallback
from tensorflow import keras

units = 2
{MODEL.replace(chr(10) + "    ", chr(10))}
model.compile(keras.optimizers.SGD(1e-9), "mse", metrics=["mae"])
x, y = np.zeros((16, 4, 3), "float32"), np.zeros((16, 1), "float32")


class Begin(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            np.savez(os.environ["SEEN_WEIGHTS"], *self.model.get_weights())


with det.core.init() as core:
    info = det.get_cluster_info()
    callback = DeterminedCallback(core, info.latest_checkpoint, info.trial.trial_id)
    callbacks = [callback, Begin()]
    model.fit(x, y, batch_size=4, epochs=1, validation_data=(x, y), verbose=2, callbacks=callbacks)
"""
LAYOUTS = {
    "0.12.0": "h5",
    "0.12.11": "h5",
    "0.13.0": "saved_model",
    "0.17.0": "weights",
    "0.28.1": "weights",
}
"""How Determined saved models from a version on."""
HPARAMS = {"lr": 1e-9, "units": 2, "global_batch_size": 4}
QUICK = ("0.12.11", "0.17.0")
each_era = pytest.mark.parametrize("era", LAYOUTS)


def save(directory: Path, era: str) -> None:
    """Write a checkpoint with the files of an era, whose position is in the database."""
    layout = LAYOUTS[era]
    if KERAS_3:
        shutil.copytree(MADE / layout, directory)
        (directory / "metadata.json").unlink()
    else:
        directory.mkdir(parents=True)
        trial = OldTrial(
            TFKerasTrialContext(loading_run("keras", {"units": 2}, None), managed=False)
        )
        model = trial.build_model()
        model.fit(*trial.build_training_data_loader(), verbose=0)
        FORMATS[layout](filled(model), directory)
    if era == "0.12.0":
        (directory / "determined-keras-model.h5").rename(directory / "determined-keras-model")
    (directory / "code").mkdir()
    (directory / "code" / "model_def.py").write_text(TRIAL)
    if layout == "weights":
        with h5py.File(directory / "determined-keras-optimizer-weights.h5", "w") as file:
            file.create_group("optimizer-0")["iterations"] = 100
        state = {"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}
        (directory / "rng_state.pkl").write_bytes(pickle.dumps(state))
        (directory / "determined-callbacks.v1.pkl").write_bytes(pickle.dumps([{}]))
    if era == "0.28.1":
        config = {"entrypoint": "model_def:Reader", "checkpoint_storage": STORAGE}
        facts = {
            "trial_type": "TFKerasTrial",
            "experiment_config": config,
            "hparams": HPARAMS,
            "trial_cls_spec": "model_def:Reader",
        }
        (directory / "load_data.json").write_text(json.dumps(facts))
        (directory / "metadata.json").write_text(json.dumps({"steps_completed": 100}))


def has_what_was_stored(weights: list[Any]) -> bool:
    return all(map(np.array_equal, weights, values([weight.shape for weight in weights])))


class Cluster:
    """A home with experiment 3 of Determined, whose checkpoint is copied to `kept`.

    Its code writes the weights with which it begins to train to a file.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.home, self.kept = root, root / "home", root / "kept"
        self.place, self.seen = root / "shared", root / "seen.npz"
        monkeypatch.setenv("DET_HOME", str(self.home))
        monkeypatch.setenv("SEEN_WEIGHTS", str(self.seen))
        monkeypatch.chdir(root)

    def copy(self, era: str, code: str, entrypoint: str, **more: Any) -> list[str]:
        """Import the experiment, and return what copying its checkpoint prints."""
        made = one_trial(
            era,
            self.place,
            {"model_def.py": code},
            entrypoint=entrypoint,
            hparams=HPARAMS,
            length=400,
            searcher={"metric": "val_mae"},
            **more,
        )
        return import_copied(self.home, made, "--to", str(self.kept)).stdout.splitlines()

    def new_experiment(self, code: str, entrypoint: str, **hparams: Any) -> tuple[Path, Path]:
        """Write an experiment that starts from trial 5, with the code."""
        folder = self.root / "model"
        folder.mkdir()
        (folder / "model_def.py").write_text(code)
        searcher = {"name": "single", "metric": "val_mae", "source_trial_id": 5}
        config = {
            "name": "new",
            "entrypoint": entrypoint,
            "hyperparameters": HPARAMS | hparams,
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(self.kept)},
            "searcher": {**searcher, "max_length": {"batches": 8}},
        }
        file = self.root / "new.json"
        file.write_text(json.dumps(config))
        return file, folder

    def seen_weights(self) -> list[Any]:
        """Return the weights with which training began."""
        with np.load(self.seen) as held:
            return [held[name] for name in held.files]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Cluster(tmp_path, monkeypatch)
    sys.modules.pop("model_def", None)


@each_era
def test_copied_checkpoint_of_every_era_loads(cluster: Cluster, era: str) -> None:
    from determined.experimental import client

    save(cluster.place / UUIDS[0], era)
    assert cluster.copy(era, TRIAL, "model_def:Reader") == [
        "copied 1 checkpoints of experiment 3",
        "it cannot be resumed: of a checkpoint of keras, det reads the weights only; start another"
        " with searcher.source_trial_id",
    ]
    model = client.get_checkpoint(UUIDS[0]).load()
    assert has_what_was_stored(model.get_weights())
    assert model.predict(np.ones((2, 4, 3), "float32"), verbose=0).shape == (2, 1)
    if at_least(era, "0.28.1"):
        # It says what it is of, so that it loads from where Determined wrote it, too.
        assert has_what_was_stored(
            load_model_from_checkpoint_path(cluster.place / UUIDS[0]).get_weights()
        )
    copied = [path for path in cluster.kept.rglob("*") if path.is_file()]
    assert copied
    assert not [path for path in copied if SECRET.encode() in path.read_bytes()]


@pytest.mark.process
@pytest.mark.parametrize(
    "era",
    [pytest.param(era, marks=[] if era in QUICK else [pytest.mark.slow]) for era in LAYOUTS],
)
def test_new_trial_starts_from_weights_of_every_era(cluster: Cluster, era: str) -> None:
    save(cluster.place / UUIDS[0], era)
    cluster.copy(era, TRIAL, "model_def:Reader", state="COMPLETED")
    file, folder = cluster.new_experiment(TRIAL, "model_def:Reader")
    done = invoke(cluster.home, "run", file, folder, "--in-process", "--quiet")
    assert done.exit_code == 0, done.output
    assert has_what_was_stored(cluster.seen_weights())
    [trial] = Client(cluster.home).get_experiment(4).list_trials()
    assert (trial.state, trial.batches) == ("COMPLETED", 8)


def test_weights_of_a_changed_model_are_refused_in_a_line(cluster: Cluster) -> None:
    save(cluster.place / UUIDS[0], "0.17.0")
    code = TRIAL.replace("Dense(3,", "Dense(4,")
    (cluster.place / UUIDS[0] / "code" / "model_def.py").write_text(code)
    cluster.copy("0.17.0", code, "model_def:Reader")
    with pytest.raises(
        CheckpointError, match=r"does not fit Reader: .*; give the trial_class"
    ) as e:
        Client(cluster.home).get_checkpoint(UUIDS[0]).load()
    assert "\n" not in str(e.value)


def test_failed_trial_is_not_resumed_from_weights_alone(cluster: Cluster) -> None:
    save(cluster.place / UUIDS[0], "0.17.0")
    cluster.copy("0.17.0", TRIAL, "model_def:Reader")
    with (
        Store(cluster.home) as store,
        pytest.raises(StoreError, match=r"with searcher\.source_trial_id") as e,
    ):
        reopen(store, 3)
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_script_of_determined_0_38_starts_from_its_weights(cluster: Cluster, det: Any) -> None:
    """Its callback saved the weights by Keras 2, under another name."""
    directory = cluster.place / UUIDS[0]
    save(directory, "0.17.0")
    for file in directory.glob("determined-keras-model-weights.*"):
        file.rename(
            file.with_name(file.name.replace("determined-keras-model-weights", "model_checkpoint"))
        )
    for file in directory.glob("*.pkl"):
        file.unlink()
    (directory / "callback_state").write_bytes(pickle.dumps({"epoch": 0, "continue_id": 5}))
    assert cluster.copy("0.38.0", SCRIPT, "python3 model_def.py")[-1] == (
        "it cannot be resumed: no framework that det knows wrote its checkpoint; start another"
        " with searcher.source_trial_id"
    )
    file, folder = cluster.new_experiment(SCRIPT, "python3 model_def.py")
    det("run", file, folder, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert "begins at epoch 0 with the model of checkpoint" in det("logs", "4").stdout
    assert has_what_was_stored(cluster.seen_weights())
    [trial] = det.json("show", "4")["trials"]
    assert (trial["state"], trial["batches"]) == ("COMPLETED", 4)


@pytest.mark.process
@pytest.mark.slow
def test_copied_checkpoint_is_exported(cluster: Cluster) -> None:
    save(cluster.place / UUIDS[0], "0.17.0")
    cluster.copy("0.17.0", TRIAL, "model_def:Reader")
    made = cluster.root / "made"
    done = invoke(cluster.home, "checkpoint", "export", UUIDS[0], made, "--format", "keras")
    assert done.exit_code == 0, done.output
    assert has_what_was_stored(keras.models.load_model(made / "model.keras").get_weights())
