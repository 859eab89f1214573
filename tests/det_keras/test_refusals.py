"""Optimizer arguments that Keras has dropped are answered with the user's line and a way out."""

from __future__ import annotations

from typing import Any

import pytest

from det_core import PluginError, TrialError
from det_keras import _hooks
from det_keras.adapter import KerasAdapter
from det_keras.testing import OneVarTrial
from det_keras.versions import KERAS_3, KERAS_VERSION, keras


class Decaying(OneVarTrial):
    def build_model(self) -> Any:
        model = self.context.wrap_model(
            keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        )
        model.compile(keras.optimizers.SGD(learning_rate=0.1, decay=1e-6), "mse")
        return model


class OldRate(OneVarTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.optimizer = keras.optimizers.SGD(lr=0.1)


class Other(OneVarTrial):
    def build_model(self) -> Any:
        raise ValueError("no decay of mine")


def refusal(trial: type, info: Any, error: type[Exception] = TrialError) -> str:
    with pytest.raises(error) as caught:
        KerasAdapter.create(trial, info())
    return str(caught.value)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 ignores a decay, with a warning of its own")
def test_a_decay_is_answered_with_a_schedule(info: Any) -> None:
    message = refusal(Decaying, info)
    line = Decaying.build_model.__code__.co_firstlineno + 4
    assert message.startswith(
        f"test_refusals.py:{line}: Keras {KERAS_VERSION} takes no decay; give learning_rate="
    )
    assert (
        "InverseTimeDecay(RATE, 1, DECAY) in its place: model.compile(keras.optimizers.SGD("
        in message
    )


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 takes lr, with a warning of its own")
def test_old_learning_rate_name_error_gives_the_new_name(info: Any) -> None:
    assert "Keras 3 takes no lr; give learning_rate in its place" in refusal(OldRate, info).replace(
        KERAS_VERSION, "3"
    )


def test_what_a_trial_raises_itself_is_left_alone(info: Any) -> None:
    assert refusal(Other, info, ValueError) == "no decay of mine"


def test_error_without_tensorflow_names_the_keras_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hooks, "has_tensorflow", lambda: False)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(
        PluginError, match="KERAS_BACKEND is 'jax', but det-keras trains Keras on TensorFlow only"
    ):
        _hooks.need_tensorflow()
    monkeypatch.delenv("KERAS_BACKEND")
    with pytest.raises(
        PluginError, match="det-keras needs TensorFlow, which is not installed; with a GPU"
    ):
        _hooks.need_tensorflow()
