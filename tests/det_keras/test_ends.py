"""Both ends of training are Keras's: callbacks know the length, and the last weights are those that `fit` would leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.det_keras import models

from det_core import Every, Plugins, Schedule, Stop
from det_core.config import Length
from det_keras.callbacks import EarlyStopping
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
    """Run a trial that compiles a model so, with callbacks; return it, and the model of its last checkpoint, by Keras alone."""

    def run(compiled: Any, *callbacks: Any, length: Any = Whole.length, **more: Any) -> tuple[Any, Any]:
        body = {"compiled": staticmethod(compiled), "callbacks": callbacks}
        runs = Whole(plugins, type("Trial", (models.Line,), body), tmp_path)
        runs.length = length
        found = runs(LENGTH, schedule=EACH_EPOCH, **{**HPARAMS, **more})
        last = found.checkpoints[max(found.checkpoints)]
        return found, keras.models.load_model(str(tmp_path / "checkpoints" / last / "model.keras"))

    return run


def alone(compiled: Any, *callbacks: Any, epochs: int = EPOCHS) -> tuple[Any, dict[str, Any]]:
    """Return the model that Keras alone trains as the trial is trained, and what it says of each epoch."""
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


@pytest.mark.parametrize("name", CASES)
def test_the_last_checkpoint_has_the_weights_of_keras_alone_and_the_numbers_that_were_reported(
    run: Any, name: str
) -> None:
    compiled, *callbacks = CASES[name]
    found, saved = run(compiled, *callbacks)
    model, history = alone(compiled, *callbacks)
    assert_same_weights(saved, model)
    evaluated = saved.evaluate(*models.UNSEEN, batch_size=models.BATCH, verbose=0, return_dict=True)
    last = found.validations[LENGTH]
    assert (last["val_loss"], last["val_mae"]) == (evaluated["loss"], evaluated["mae"])
    before = [found.validations[EPOCH * n]["val_loss"] for n in range(1, EPOCHS)]
    assert before == history["val_loss"][:-1]


@pytest.mark.parametrize("at", [4, EPOCH, LENGTH - 1, LENGTH])
def test_a_preempted_run_is_saved_as_training_left_it_and_ends_as_if_nothing_had_been(run: Any, at: int) -> None:
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


@pytest.mark.parametrize("compiled", [models.line, models.averaged])
def test_callbacks_hear_what_keras_alone_tells_them(run: Any, compiled: Any) -> None:
    """The length before the first batch; each epoch with what training left; the end of training, once."""
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


@pytest.mark.parametrize("stops", [models.best_weights, EarlyStopping])
def test_a_trial_that_stops_early_has_its_best_weights_in_the_last_checkpoint(run: Any, stops: Any) -> None:
    def stopping() -> Any:
        return stops(monitor="val_loss", patience=1, min_delta=1e9, restore_best_weights=True)

    found, saved = run(models.line, stopping, length=Length("batches", 50))
    assert found.stop is Stop.USER_STOPPED or found.batches == LENGTH
    assert_same_weights(saved, alone(models.line, epochs=1)[0])
    evaluated = saved.evaluate(*models.UNSEEN, batch_size=models.BATCH, verbose=0, return_dict=True)
    assert found.validations[max(found.validations)]["val_loss"] == evaluated["loss"]
