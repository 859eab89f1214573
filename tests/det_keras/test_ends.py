"""Both ends of training are Keras's.

Callbacks know the length, and the last weights are those that `fit` would leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import Every, Plugins, Schedule, Stop
from det_core.config import Length
from det_keras.callbacks import EarlyStopping
from det_keras.load import tensors
from det_keras.rng import seed_everything
from det_keras.versions import keras
from det_testing import Runs

EPOCH, EPOCHS = 6, 3
LENGTH = EPOCH * EPOCHS
EACH_EPOCH = Schedule(report=Every(1), validate=Every(EPOCH), policy="none")
HPARAMS = {"global_batch_size": models.BATCH}


class Whole(Runs):
    """Runs of a trial whose length is known."""

    length: Any = Length("batches", LENGTH)

    def info(self, **more: Any) -> Any:
        return replace(super().info(**more), length=self.length)


@pytest.fixture
def run(plugins: Plugins, tmp_path: Path) -> Callable[..., Any]:
    """Run a trial that compiles a model so, with callbacks.

    Return it, and the model of its last checkpoint, by Keras alone.
    """

    def run(
        compiled: Any, *callbacks: Any, length: Any = Whole.length, **more: Any
    ) -> tuple[Any, Any]:
        body = {"compiled": staticmethod(compiled), "callbacks": callbacks}
        runs = Whole(plugins, type("Trial", (models.Line,), body), tmp_path)
        runs.length = length
        found = runs(LENGTH, schedule=EACH_EPOCH, **{**HPARAMS, **more})
        last = found.checkpoints[max(found.checkpoints)]
        return found, keras.models.load_model(str(tmp_path / "checkpoints" / last / "model.keras"))

    return run


def alone(compiled: Any, *callbacks: Any, epochs: int = EPOCHS) -> tuple[Any, dict[str, Any]]:
    """Return the model that Keras alone trains like the trial, and its report of each epoch."""
    seed_everything(1)
    model = compiled()
    history = model.fit(
        models.POINTS,
        models.SUMS,
        batch_size=models.BATCH,
        epochs=epochs,
        shuffle=False,
        validation_data=models.UNSEEN,
        validation_batch_size=models.BATCH,
        callbacks=[make() for make in callbacks],
        verbose=0,
    )
    return model, history.history


def assert_same_weights(model: Any, other: Any) -> None:
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


CASES = {
    "plain": (models.line,),
    "averaged": (models.averaged,),
    "averaged halfway": (models.averaged_halfway,),
    "best": (models.line, models.best_weights),
    "averaged and best": (models.averaged, models.best_weights),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_last_checkpoint_has_keras_weights_and_reported_metrics(run: Any, name: str) -> None:
    compiled, *callbacks = CASES[name]
    found, saved = run(compiled, *callbacks)
    model, history = alone(compiled, *callbacks)
    assert_same_weights(saved, model)
    evaluated = saved.evaluate(*models.UNSEEN, batch_size=models.BATCH, verbose=0, return_dict=True)
    last = found.validations[LENGTH]
    assert (last["val_loss"], last["val_mae"]) == (evaluated["loss"], evaluated["mae"])
    before = [found.validations[EPOCH * n]["val_loss"] for n in range(1, EPOCHS)]
    assert before == history["val_loss"][:-1]


@pytest.mark.sample
@pytest.mark.parametrize("at", [4, EPOCH, LENGTH - 1, LENGTH])
def test_preempted_run_saves_before_the_end_and_resumes_exactly(run: Any, at: int) -> None:
    whole, expected = run(models.averaged, models.best_weights)
    first, saved = run(models.averaged, models.best_weights, preempt_at=at)
    assert first.stop is Stop.PREEMPTED
    if at % EPOCH == 0:
        assert_same_weights(saved, alone(models.line, epochs=at // EPOCH)[0])
    second, ended = run(models.averaged, models.best_weights, checkpoint=first.checkpoints[at])
    assert second.stop is Stop.COMPLETED
    assert_same_weights(ended, expected)
    assert {**first.validations, **second.validations} == whole.validations
    assert {**first.losses, **second.losses} == whole.losses


class Head(keras.Model):
    """Its step trains the second of two layers only, and in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.body(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        trained = self.head.trainable_weights[::-1]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return {"loss": loss}


def head() -> Any:
    keras.utils.set_random_seed(1)
    model = Head()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8), "mse")
    return model


def test_averages_apply_to_the_weights_the_optimizer_trains(
    plugins: Plugins, tmp_path: Path
) -> None:
    """Keras's own `fit` raises at its end, so that a loop of Keras's steps is the oracle."""
    runs = Whole(plugins, type("Trial", (models.Line,), {"compiled": staticmethod(head)}), tmp_path)
    found = runs(LENGTH, schedule=EACH_EPOCH, **HPARAMS)
    mine = tensors(tmp_path / "checkpoints" / found.checkpoints[LENGTH])["weights"]

    model = head()
    for number in range(LENGTH):
        first = number % EPOCH * models.BATCH
        x, y = (each[first : first + models.BATCH] for each in (models.POINTS, models.SUMS))
        model.train_step((tf.constant(x), tf.constant(y)))
    before = model.get_weights()
    model.optimizer.finalize_variable_values(model.head.trainable_weights[::-1])
    assert any((one != other).any() for one, other in zip(model.get_weights(), before, strict=True))
    saved = sorted(np.ravel(a).tolist() for name, a in mine.items() if "metrics" not in name)
    for one, other in zip(
        saved, sorted(np.ravel(a).tolist() for a in model.get_weights()), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-5)


class Diary(keras.callbacks.Callback):
    """Writes down what ends, in order, and what it was told of the length."""

    written: list[Any]

    def on_train_begin(self, logs: Any = None) -> None:
        self.written.append(dict(self.params))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.written.append((epoch, logs["val_loss"]))

    def on_train_end(self, logs: Any = None) -> None:
        self.written.append("train ends")


def diary() -> tuple[Any, list[Any]]:
    written: list[Any] = []
    return type("OneDiary", (Diary,), {"written": written}), written


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [models.line, models.averaged])
def test_callbacks_hear_what_keras_alone_tells_them(run: Any, compiled: Any) -> None:
    """The length before the first batch.

    Each epoch with what training left. The end of training, once.
    """
    one, mine = diary()
    other, theirs = diary()
    run(compiled, one)
    alone(compiled, other)
    assert mine == theirs


def test_a_length_that_nobody_knows_is_no_number(run: Any) -> None:
    one, mine = diary()
    run(models.line, one, length=None)
    assert (mine[0]["epochs"], mine[0]["steps"]) == (None, EPOCH)
    assert mine.count("train ends") == 1


@pytest.mark.slow
@pytest.mark.parametrize("stops", [models.best_weights, EarlyStopping])
def test_early_stop_has_the_best_weights_in_the_last_checkpoint(run: Any, stops: Any) -> None:
    def stopping() -> Any:
        return stops(monitor="val_loss", patience=1, min_delta=1e9, restore_best_weights=True)

    found, saved = run(models.line, stopping, length=Length("batches", 50))
    assert found.stop is Stop.USER_STOPPED or found.batches == LENGTH
    assert_same_weights(saved, alone(models.line, epochs=1)[0])
    evaluated = saved.evaluate(*models.UNSEEN, batch_size=models.BATCH, verbose=0, return_dict=True)
    assert found.validations[max(found.validations)]["val_loss"] == evaluated["loss"]
