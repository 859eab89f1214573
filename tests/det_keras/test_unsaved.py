"""What no checkpoint holds is named when the first one is saved."""

from __future__ import annotations

import re
import warnings
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import At, Every, Schedule, core
from det_keras import DeterminedCallback
from det_keras.callbacks import Callback, EarlyStopping
from det_keras.rng import seed_everything
from det_keras.testing import StrictTrial
from det_keras.versions import keras

SAVED = Schedule(report=Every(1), validate=At(set()), checkpoint=At({3, 6}), policy="none")


class Step(keras.Model):
    """What `more` does is in its training step."""

    more: Any = staticmethod(lambda x: 0.0)

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((x, y + type(self).more(x)))


def stepping(more: Any, **options: Any) -> Any:
    def compiled() -> Any:
        model = type("Stepping", (Step,), {"more": staticmethod(more())})()
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", **options)
        return model

    return compiled


def drawing() -> Any:
    return lambda x: tf.random.uniform(tf.shape(x))[:, :1]


def drawing_in_a_loop() -> Any:
    return lambda x: tf.map_fn(lambda row: row + tf.random.normal([]), x[:, :1])


def counting() -> Any:
    count = tf.Variable(0.0, trainable=False)
    return lambda x: count.assign_add(1.0)


def reading() -> Any:
    """Return what only reads a variable that the model has not."""
    scale = tf.Variable(0.5)
    return lambda x: scale * 1.0


def counting_in_a_branch() -> Any:
    count = tf.Variable(0.0, trainable=False)
    return lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: count.assign_add(1.0), lambda: 0.0)


def looking_up() -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def more(x: Any) -> Any:
        key = tf.constant([1], tf.int64)
        seen = table.lookup(key)
        table.insert(key, seen + 1)
        return tf.reshape(seen, (1,))

    return more


NAMED: dict[Any, str] = {
    drawing: r"draws random numbers with \S*random_uniform\S*, whose position no",
    drawing_in_a_loop: r"draws random numbers with \S*random_normal\S*, whose position no",
    counting: r"the training step changes \S*Variable\S*, which no checkpoint holds",
    counting_in_a_branch: r"the training step changes \S*Variable\S*, which no checkpoint holds",
    looking_up: r"the training step changes a lookup table, which no checkpoint holds",
}


@pytest.fixture
def told(runs: Any) -> Any:
    """Return the warnings of a run of a trial that saves twice."""

    def told(trial: type, **hparams: Any) -> list[str]:
        keras.backend.clear_session()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            runs(trial)(8, schedule=SAVED, global_batch_size=models.BATCH, **hparams)
        return [str(each.message) for each in found if "checkpoint" in str(each.message)]

    return told


def line(compiled: Any = models.line, *callbacks: Any) -> type:
    return type(
        "Trial", (models.Line,), {"compiled": staticmethod(compiled), "callbacks": callbacks}
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", NAMED)
def test_what_a_step_changes_and_nobody_saves_is_named(told: Any, more: Any) -> None:
    (message,) = told(line(stepping(more)))
    assert re.search(NAMED[more], message)
    assert "\n" not in message


@pytest.mark.slow
def test_several_batches_at_once_are_looked_into(told: Any) -> None:
    (message,) = told(line(stepping(counting, steps_per_execution=2)))
    assert "which no checkpoint holds" in message


def mixed() -> Any:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return models.averaged()
    finally:
        keras.mixed_precision.set_global_policy(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trial",
    [
        StrictTrial,
        line(stepping(reading)),
        line(mixed),
        models.Convolutions,
        models.Several,
        line(models.game),
    ],
)
def test_what_is_saved_is_not_named(told: Any, trial: type) -> None:
    assert told(trial) == []


def test_gradients_that_wait_are_not_named(runs: Any, recwarn: Any) -> None:
    runs(line())(8, schedule=SAVED, global_batch_size=models.BATCH, aggregation=2)
    assert not [each for each in recwarn if "checkpoint" in str(each.message)]


@pytest.mark.slow
@pytest.mark.parametrize("more", [drawing, counting, None])
def test_what_a_scripts_step_changes_is_named(
    more: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    seed_everything(1)
    model = stepping(more)() if more else models.several()
    data = models.Line.training if more else models.Several.training
    with (
        core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as context,
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always", UserWarning)
        callbacks = [DeterminedCallback(context, None, 1)]
        model.fit(*data, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    told = [text for each in found if "the training step" in (text := str(each.message))]
    assert len(told) == (more is not None)


class Inner:
    def __init__(self) -> None:
        self.count = 0


class Holds(keras.callbacks.Callback):
    """Changes what it holds with each batch; `kept` says what that is."""

    kept: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.held = type(self).kept()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        held = self.held
        if isinstance(held, deque):
            held.append(batch)
        elif isinstance(held, Counter):
            held["batches"] += 1
        elif isinstance(held, Inner):
            held.count += 1
        elif isinstance(held, np.random.Generator):
            held.random()
        elif isinstance(held, keras.Model):
            held.set_weights([weight + 1 for weight in held.get_weights()])
        elif isinstance(held, dict):
            held["inner"].count += 1


def other_model() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


KEPT: list[Any] = [
    deque,
    Counter,
    Inner,
    np.random.default_rng,
    other_model,
    lambda: {"inner": Inner()},
]


@pytest.mark.slow
def test_attributes_of_callbacks_that_nobody_saves_are_named(told: Any) -> None:
    callbacks = [
        type(f"Holds{place}", (Holds,), {"kept": staticmethod(kept)})
        for place, kept in enumerate(KEPT)
    ]
    messages = told(line(models.line, *callbacks))
    assert [message.split(" of a callback")[0] for message in messages] == [
        f"training changes the attribute Holds{place}.held" for place in range(len(KEPT))
    ]


class Harmless(keras.callbacks.Callback):
    """Holds plain data, which is saved, parts of the model, functions, and what does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.options, self.choose = frozenset({1}), lambda value: value
        self.part: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.part = {"layer": self.model.layers[-1], "weights": self.model.weights}
        self.losses.append(1.0)


class Keeps(Callback):
    """Saves what it holds by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: deque[int] = deque()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)

    def get_state(self) -> Any:
        return list(self.seen)

    def load_state(self, state: Any) -> None:
        self.seen = deque(state)


@pytest.mark.slow
def test_callbacks_that_lose_nothing_are_not_named(told: Any) -> None:
    plateau = lambda: keras.callbacks.ReduceLROnPlateau("loss")  # noqa: E731
    rate = lambda: keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)  # noqa: E731
    stop = lambda: EarlyStopping("val_loss")  # noqa: E731
    assert told(line(models.line, Harmless, Keeps, plateau, rate, stop, models.best_weights)) == []
