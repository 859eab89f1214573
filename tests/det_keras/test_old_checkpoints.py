"""Weights that Determined saved with Keras 2 go into the trial's model, with either Keras."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.det_keras.old_checkpoints import (
    FORMATS,
    MADE,
    OfAttributes,
    OldTrial,
    filled,
    make,
    values,
)

from det_core import CheckpointError
from det_core.train.load_data import loading_run
from det_keras import load_model_from_checkpoint_path
from det_keras.context import TFKerasTrialContext
from det_keras.versions import KERAS_3, keras

each_format = pytest.mark.parametrize("name", FORMATS)


class Wider(OldTrial):
    def build_model(self) -> Any:
        model = keras.Sequential([keras.Input((4, 3)), keras.layers.LSTM(5), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model


def built() -> Any:
    return OldTrial(
        TFKerasTrialContext(loading_run("keras", {"units": 2}, None), managed=False)
    ).build_model()


def has_the_old_weights(model: Any) -> bool:
    weights = model.get_weights()
    return all(map(np.array_equal, weights, values([weight.shape for weight in weights])))


@each_format
def test_trial_model_gets_the_weights_that_keras_2_saved(name: str) -> None:
    assert has_the_old_weights(load_model_from_checkpoint_path(MADE / name, trial_class=OldTrial))


def test_custom_model_class_gets_its_weights_by_attributes() -> None:
    assert has_the_old_weights(
        load_model_from_checkpoint_path(MADE / "attributes", trial_class=OfAttributes)
    )


@each_format
def test_a_new_trial_starts_from_the_weights_of_an_old_one(
    name: str, info: Any, plugins: Any
) -> None:
    run = info(hparams={"units": 2, "global_batch_size": 2})
    with closing(plugins.frameworks()["keras"].load().create(OldTrial, run)) as adapter:
        adapter.load(MADE / name)
        assert has_the_old_weights(adapter.model)


def test_a_run_does_not_go_on_from_old_weights_alone(info: Any, plugins: Any) -> None:
    run = info(hparams={"units": 2, "global_batch_size": 2}, first_batch=5)
    adapter = plugins.frameworks()["keras"].load().create(OldTrial, run)
    with closing(adapter), pytest.raises(CheckpointError, match="holds no"):
        adapter.load(MADE / "h5")


@each_format
def test_the_trial_comes_from_the_code_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(MADE / name, tmp_path / name))
    (path / "code").mkdir()
    shutil.copy(Path(__file__).parent / "old_checkpoints.py", path / "code" / "old.py")
    model = load_model_from_checkpoint_path(path)
    assert has_the_old_weights(model)
    assert model.predict(np.ones((2, 4, 3), "float32"), verbose=0).shape == (2, 1)


@pytest.mark.sample
@pytest.mark.skipif(KERAS_3, reason="Keras 3 cannot write these formats")
@each_format
def test_what_this_keras_2_saves_is_read(name: str, tmp_path: Path) -> None:
    make(filled(built()), name, tmp_path / name)
    assert has_the_old_weights(
        load_model_from_checkpoint_path(tmp_path / name, trial_class=OldTrial)
    )


@pytest.mark.skipif(KERAS_3, reason="Keras 3 cannot write these formats")
def test_model_built_by_its_first_batch_then_gets_its_weights(tmp_path: Path) -> None:
    class Late(OldTrial):
        def build_model(self) -> Any:
            model = keras.Sequential([keras.layers.Dense(2)])
            model.compile("sgd", "mse")
            return model

    model = Late(TFKerasTrialContext(loading_run("keras", {}, None), managed=False)).build_model()
    model.build((None, 3))
    make(filled(model), "weights", tmp_path / "late")
    loaded = load_model_from_checkpoint_path(tmp_path / "late", trial_class=Late)
    loaded(np.ones((1, 3), "float32"))
    assert has_the_old_weights(loaded)


@each_format
def test_weights_of_another_model_are_refused_in_a_line(name: str) -> None:
    with pytest.raises(CheckpointError, match="does not fit Wider") as caught:
        load_model_from_checkpoint_path(MADE / name, trial_class=Wider)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_todays_trial_comes_first(tmp_path: Path) -> None:
    path = Path(shutil.copytree(MADE / "h5", tmp_path / "both"))
    built().save_weights(str(path / "model.weights.h5"))
    (path / "load_data.json").write_text(json.dumps({"hparams": {"units": 2}}))
    assert not has_the_old_weights(load_model_from_checkpoint_path(path, trial_class=OldTrial))


def test_first_format_without_suffix_loads_with_a_given_class(tmp_path: Path) -> None:
    """Determined 0.12 wrote HDF5 without a suffix, and nothing of the trial."""

    class OfTwo(OldTrial):
        def __init__(self, context: Any) -> None:
            self.context = SimpleNamespace(get_hparam=lambda name: 2, wrap_model=context.wrap_model)

    shutil.copy(MADE / "h5" / "determined-keras-model.h5", tmp_path / "determined-keras-model")
    assert has_the_old_weights(load_model_from_checkpoint_path(tmp_path, trial_class=OfTwo))
