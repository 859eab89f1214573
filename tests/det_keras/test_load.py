"""A model out of a checkpoint, and what a checkpoint holds."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from det_core import CheckpointError, TrialError
from det_core.checkpoint import read_checkpoint
from det_keras import TFKerasTrial, load_model_from_checkpoint_path
from det_keras.adapter import KerasAdapter
from det_keras.state import read_state, write_state
from det_keras.testing import OneVarTrial
from det_keras.versions import keras
from det_testing import OneVar


class Plain(OneVarTrial):
    """With a model that Keras can describe by itself."""

    def build_model(self) -> Any:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = self.context.wrap_model(keras.Sequential([keras.Input((1,)), layer]))
        model.compile(keras.optimizers.SGD(self.settings.lr), "mse")
        return model


class Other(Plain):
    def build_model(self) -> Any:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model


@pytest.fixture
def checkpoint(runs: Any, tmp_path: Path) -> Path:
    """The directory of a checkpoint behind 7 batches."""
    run = runs(Plain)
    uuid = run(7).checkpoints[7]
    with read_checkpoint(run.storage, uuid) as (path, _):
        return Path(shutil.copytree(path, tmp_path / "copy"))


def weight(model: Any) -> float:
    return float(model.get_weights()[0][0, 0])


def test_a_model_comes_out_of_a_checkpoint_by_its_trial(checkpoint: Path) -> None:
    model = load_model_from_checkpoint_path(checkpoint, trial_class=Plain)
    assert weight(model) == pytest.approx(OneVar().weight(7), rel=1e-5)


def test_a_model_comes_out_of_a_checkpoint_by_keras_alone(checkpoint: Path) -> None:
    for model in (
        load_model_from_checkpoint_path(checkpoint),
        keras.models.load_model(str(checkpoint / "model.keras")),
    ):
        assert weight(model) == pytest.approx(OneVar().weight(7), rel=1e-5)


def test_a_checkpoint_holds_nothing_that_is_unpickled(checkpoint: Path) -> None:
    with zipfile.ZipFile(checkpoint / "model.keras") as archive:
        assert sorted(archive.namelist()) == ["config.json", "metadata.json", "model.weights.h5"]
    with np.load(checkpoint / "arrays.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays)


MISTAKES = {
    "no checkpoint": (
        lambda path: path.parent / "nowhere",
        {},
        "holds neither model.keras nor model.weights.h5",
    ),
    "another trial": (lambda path: path, {"trial_class": Other}, "does not fit Other"),
    "no trial": (lambda path: path, {"trial_class": int}, "builtins.int is no TFKerasTrial"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_loaded_is_one_line(checkpoint: Path, name: str) -> None:
    place, options, message = MISTAKES[name]
    with pytest.raises(CheckpointError, match=message) as raised:
        load_model_from_checkpoint_path(place(checkpoint), **options)
    assert "\n" not in str(raised.value)


def test_a_damaged_checkpoint_is_one_line(checkpoint: Path) -> None:
    (checkpoint / "load_data.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"load_data.json is not JSON"):
        load_model_from_checkpoint_path(checkpoint, trial_class=Plain)
    (checkpoint / "state.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"state.json cannot be read.*the checkpoint is damaged"
    ):
        read_state(checkpoint)
    (checkpoint / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no state.json"):
        read_state(checkpoint)


def test_checkpoint_of_another_model_is_refused_at_resume(info: Any, checkpoint: Path) -> None:
    adapter = KerasAdapter.create(Other, info())
    with pytest.raises(TrialError, match="does not fit"):
        adapter.load(checkpoint)
    adapter.close()


def test_state_is_plain_data_and_arrays_and_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "a": [1, 2.5, None, True, "x", float("inf")],
        "b": {1: (2, np.arange(3, dtype="uint32"))},
        "c": np.float32(1.5),
    }
    write_state(state, tmp_path)
    again = read_state(tmp_path)
    assert (again["a"], again["b"][1][0], float(again["c"])) == (state["a"], 2, 1.5)
    assert again["b"][1][1].dtype == np.uint32
    with pytest.raises(
        TrialError, match=r"the state\['x'\]\[0\] is object, which a checkpoint cannot hold safely"
    ):
        write_state({"x": [object()]}, tmp_path)


def test_error_for_an_unimportable_class_requests_trial_class(checkpoint: Path) -> None:
    (checkpoint / "code").mkdir(exist_ok=True)
    (checkpoint / "load_data.json").write_text('{"trial_cls_spec": "__main__:Trial"}')
    with pytest.raises(CheckpointError, match="give it as trial_class"):
        load_model_from_checkpoint_path(checkpoint)
    assert issubclass(Plain, TFKerasTrial)
