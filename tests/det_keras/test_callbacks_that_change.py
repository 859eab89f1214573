"""Callbacks that change the model.

What they do is kept, put back, or refused when it happens, and never half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import At, Every, Plugins, Schedule, Stop, TrialError
from det_core.config import Length
from det_keras.callbacks import EarlyStopping
from det_keras.load import tensors
from det_keras.rng import seed_everything
from det_keras.versions import keras
from det_testing import Runs

EPOCH, LENGTH = 6, 12
QUIET = Schedule(report=Every(1), validate=At(set()), policy="none")
EACH_EPOCH = Schedule(report=Every(1), validate=Every(EPOCH), policy="none")


class Known(Runs):
    """Runs of a trial whose length is known."""

    length = LENGTH
    records_per_epoch: int | None = None

    def info(self, **more: Any) -> Any:
        info = super().info(**more)
        config = msgspec.structs.replace(info.config, records_per_epoch=self.records_per_epoch)
        return replace(info, config=config, length=Length("batches", self.length))


@pytest.fixture
def trained(plugins: Plugins, tmp_path: Path) -> Callable[..., Any]:
    """Train a linear model with callbacks."""

    def trained(
        *callbacks: Any, length: int = LENGTH, schedule: Schedule = QUIET, **more: Any
    ) -> Any:
        data = {
            name: more.pop(name)
            for name in ("training", "build_training_data_loader")
            if name in more
        }
        runs = Known(
            plugins, type("Trial", (models.Line,), {"callbacks": callbacks, **data}), tmp_path
        )
        runs.length, runs.records_per_epoch = length, more.pop("records_per_epoch", None)
        keras.backend.clear_session()
        return runs(length, schedule=schedule, global_batch_size=models.BATCH, **more)

    return trained


@pytest.fixture
def last(tmp_path: Path) -> Callable[[Any], dict[str, Any]]:
    """Return the arrays of a run's last checkpoint."""

    def last(found: Any) -> dict[str, Any]:
        held = tensors(tmp_path / "checkpoints" / found.checkpoints[max(found.checkpoints)])
        return {
            f"{group}/{name}": array
            for group, arrays in held.items()
            for name, array in arrays.items()
        }

    return last


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


class Begins(keras.callbacks.Callback):
    """Sets weights and the learning rate when training begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.set_weights([np.ones((4, 1)), np.zeros(1)])
        self.model.optimizer.learning_rate.assign(0.01)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.01 * (batch + 2))


@pytest.mark.slow
def test_on_train_begin_changes_are_made_once_across_resumes(trained: Any, last: Any) -> None:
    whole = trained(Begins)
    first = trained(Begins, preempt_at=5)
    second = trained(Begins, checkpoint=first.checkpoints[5])
    assert {**first.losses, **second.losses} == whole.losses
    assert_same(last(second), last(whole))


class Recompiles(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer = keras.optimizers.SGD(0.001)


class InTheMiddle(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer = keras.optimizers.SGD(0.001)


class Freezes(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[-1].trainable = False


def retrace(model: Any) -> None:
    model.make_train_function(force=True)


class Compiles(keras.callbacks.Callback):
    """Takes the same optimizer, but another loss."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.compile(self.model.optimizer, "mae")
            retrace(self.model)


class CompilesInTheMiddle(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.compile(self.model.optimizer, "mse", loss_weights=0.1, metrics=["mae"])
        retrace(self.model)


class FreezesInTheMiddle(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.layers[-1].trainable = False


REFUSED = {
    Compiles: "a callback compiled the model again",
    CompilesInTheMiddle: "a callback compiled the model again",
    FreezesInTheMiddle: "a callback changed which weights are trained",
    Recompiles: "a callback gave the model another optimizer than its SGD",
    InTheMiddle: "a callback gave the model another optimizer than its SGD",
    Freezes: "on_epoch_begin of a callback changed which weights are trained",
}


@pytest.mark.sample
@pytest.mark.parametrize("callback", REFUSED, ids=lambda each: str(each.__name__))
def test_a_callback_that_changes_what_is_trained_is_refused(trained: Any, callback: Any) -> None:
    with pytest.raises(TrialError, match=REFUSED[callback]) as raised:
        trained(callback)
    assert "\n" not in str(raised.value)


class Average(keras.callbacks.Callback):
    """Puts an average of the weights in place for validations, and takes it out again."""

    def __init__(self) -> None:
        super().__init__()
        self.average: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        weights = self.model.get_weights()
        old = self.average or weights
        self.average = [0.9 * a + 0.1 * w for a, w in zip(old, weights, strict=True)]

    def on_test_begin(self, logs: Any = None) -> None:
        self.own = self.model.get_weights()
        self.model.set_weights(self.average)

    def on_test_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.own)


def test_weights_swapped_for_a_validation_are_not_the_last_ones(
    trained: Any, tmp_path: Path
) -> None:
    """The last report is of the weights in the last checkpoint.

    The best ones, which a swap must not overwrite.
    """
    found = trained(Average, lambda: models.best_weights(mode="max"), schedule=EACH_EPOCH)
    path = tmp_path / "checkpoints" / found.checkpoints[LENGTH]
    saved = keras.models.load_model(str(path / "model.keras"))
    evaluated = saved.evaluate(*models.UNSEEN, batch_size=models.BATCH, verbose=0, return_dict=True)
    assert found.validations[LENGTH]["val_loss"] == evaluated["loss"]


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [EACH_EPOCH, QUIET], ids=["validated", "quiet"])
def test_run_paused_at_a_callbacks_stop_trains_no_more(
    trained: Any, last: Any, schedule: Any
) -> None:
    whole = trained(Stops, schedule=schedule)
    first = trained(Stops, schedule=schedule, preempt_at=EPOCH)
    assert (whole.stop, first.stop, max(whole.reports)) == (
        Stop.USER_STOPPED,
        Stop.PREEMPTED,
        EPOCH,
    )
    second = trained(Stops, schedule=schedule, checkpoint=first.checkpoints[EPOCH])
    assert (second.stop, second.reports) == (Stop.USER_STOPPED, {})
    assert {**first.validations, **second.validations} == whole.validations
    assert_same(last(second), last(whole))


def endless(self: Any) -> Any:
    data = self.context.wrap_dataset(
        tf.data.Dataset.from_tensor_slices((models.POINTS, models.SUMS))
    )
    return data.filter(lambda x, y: True).batch(models.BATCH)


def test_callbacks_of_epochs_need_data_that_knows_its_length(trained: Any) -> None:
    """Nobody can tell them of epochs; those that wait for validations only are no worse off."""
    rate = lambda: keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr)  # noqa: E731
    with pytest.raises(
        TrialError,
        match="the callback LearningRateScheduler would never hear of epochs; set records",
    ):
        trained(rate, build_training_data_loader=endless)
    found = trained(lambda: EarlyStopping("val_loss"), length=2, build_training_data_loader=endless)
    assert max(found.reports) == 2


def of_known_length(self: Any) -> Any:
    return endless(self).apply(tf.data.experimental.assert_cardinality(EPOCH))


class Rates(keras.callbacks.LearningRateScheduler):
    """Lowers the rate with each epoch, and notes each epoch with its rate and its loss."""

    made: ClassVar[list[Rates]] = []

    def __init__(self) -> None:
        super().__init__(lambda epoch, rate: rate / (epoch + 1))
        self.noted: list[tuple[int, float, float]] = []
        self.made.append(self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        self.noted.append((epoch, rate, float(logs["loss"])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "records"), [(endless, len(models.POINTS)), (of_known_length, None)]
)
def test_length_that_is_given_makes_keras_epochs(trained: Any, data: Any, records: Any) -> None:
    """The two ways out of the refusal give the epochs and the rates of Keras."""
    trained(Rates, build_training_data_loader=data, records_per_epoch=records)
    mine = Rates.made[-1].noted
    keras.backend.clear_session()
    seed_everything(1)
    plain, rates = models.line(), Rates()
    options = {"batch_size": models.BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    plain.fit(models.POINTS, models.SUMS, **options, callbacks=[rates])
    assert [epoch for epoch, _, _ in mine] == [0, 1]
    assert mine == rates.noted


def dropped() -> Any:
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    return model


def dropped_eager() -> Any:
    model = dropped()
    model.run_eagerly = True
    return model


def dropped_in_chunks() -> Any:
    model = dropped()
    model.compile(model.optimizer, "mse", steps_per_execution=4)
    return model


class Sets(keras.callbacks.Callback):
    """Changes plain numbers, and compiles the step again if `retraces`."""

    retraces = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer.momentum, self.model.optimizer.clipnorm = 0.9, 0.5
            self.model.layers[-2].rate = 0.6
            if self.retraces:
                retrace(self.model)


class SetsOnly(Sets):
    retraces = False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "callback"),
    [(dropped, Sets), (dropped, SetsOnly), (dropped_eager, SetsOnly), (dropped_in_chunks, Sets)],
)
def test_plain_settings_that_callbacks_change_survive_a_restart(
    plugins: Plugins, tmp_path: Path, last: Any, model: Any, callback: Any
) -> None:
    """A compiled step that is not traced again has the old ones, and so it stays."""
    parts = {"compiled": staticmethod(model), "callbacks": [callback]}
    runs = Known(plugins, type("Trial", (models.Line,), parts), tmp_path)

    def trained(**more: Any) -> Any:
        keras.backend.clear_session()
        return runs(LENGTH, schedule=QUIET, global_batch_size=models.BATCH, **more)

    whole = trained()
    first = trained(preempt_at=EPOCH + 2)
    second = trained(checkpoint=first.checkpoints[EPOCH + 2])
    assert {**first.losses, **second.losses} == whole.losses
    assert_same(last(second), last(whole))
    keras.backend.clear_session()
    seed_everything(1)
    plain = model()
    options = {"batch_size": models.BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    plain.fit(models.POINTS, models.SUMS, **options, callbacks=[callback()])
    # Keras's own chunks of four reach over the end of an epoch of six.
    if model is not dropped_in_chunks:
        saved = keras.models.load_model(
            str(tmp_path / "checkpoints" / whole.checkpoints[LENGTH] / "model.keras"), compile=False
        )
        for one, other in zip(saved.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
