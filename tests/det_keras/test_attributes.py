"""State that Keras's files leave out survives a restart.

Nothing that a model holds in its attributes is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import At, Every, Schedule, core
from det_keras import DeterminedCallback, load_model_from_checkpoint_path
from det_keras.load import tensors
from det_keras.rng import seed_everything
from det_keras.versions import KERAS_3, keras

EPOCH, LENGTH = 6, 12
QUIET = Schedule(report=Every(1), validate=At(set()), policy="none")
SEQUENCES = np.random.default_rng(2).normal(size=(24, 5, 2)).astype("float32")


class Annealed(keras.Model):
    """Its loss has a weight in a variable of TensorFlow's, which an object of the user's holds."""

    class Weight:
        def __init__(self) -> None:
            self.value = tf.Variable(0.0, trainable=False)

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.weight = keras.layers.Dense(1), self.Weight()

    def call(self, x: Any) -> Any:
        return self.dense(x) * (1.0 + self.weight.value)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.weight.value.assign_add(0.1)
        with tf.GradientTape() as tape:
            loss = self.weight.value * tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Noisy(keras.layers.Layer):
    """Draws from a generator of TensorFlow's."""

    def __init__(self) -> None:
        super().__init__()
        self.held = {"generators": [tf.random.Generator.from_seed(3)]}

    def call(self, x: Any, training: bool = False) -> Any:
        return x + self.held["generators"][0].normal(tf.shape(x)) if training else x


class Counted(keras.Model):
    """Has a metric that it does not name among its metrics, and trains by what it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.seen = keras.layers.Dense(1), keras.metrics.Sum()

    @property
    def metrics(self) -> list[Any]:
        return []

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.seen.update_state(1.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2) / self.seen.result()
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        return {"loss": tf.reduce_mean((self(data[0]) - data[1]) ** 2)}


def annealed() -> Any:
    model = Annealed()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def noisy() -> Any:
    model = keras.Sequential([keras.Input((4,)), Noisy(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def counted() -> Any:
    model = Counted()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def stateful() -> Any:
    layers = [keras.layers.LSTM(3, stateful=True), keras.layers.Dense(1)]
    where = {"batch_shape" if KERAS_3 else "batch_input_shape": (models.BATCH, 5, 2)}
    first = (
        keras.Input(batch_shape=where["batch_shape"])
        if KERAS_3
        else keras.layers.InputLayer(**where)
    )
    model = keras.Sequential([first, *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def eager() -> Any:
    model = annealed()
    model.run_eagerly = True
    return model


def test_a_loaded_model_has_what_its_attributes_held(runs: Any, tmp_path: Path) -> None:
    def built() -> Any:
        model = annealed()
        model.build((None, 4))
        return model

    trial = type("Trial", (models.Line,), {"compiled": staticmethod(built)})
    found = runs(trial)(3, schedule=QUIET, global_batch_size=models.BATCH)
    model = load_model_from_checkpoint_path(
        tmp_path / "checkpoints" / found.checkpoints[3], trial_class=trial
    )
    assert float(model.weight.value) == pytest.approx(0.3)


WORDS = np.array(["a b", "b c", "c a d", "d a"] * 6)


def test_keras_alone_loads_a_model_with_its_vocabulary(runs: Any, tmp_path: Path) -> None:
    """A vocabulary is no weight but an asset of Keras's file."""

    def words() -> Any:
        reader = keras.layers.TextVectorization(max_tokens=9, output_mode="multi_hot")
        reader.adapt(WORDS)
        inputs = keras.Input((1,), dtype="string")
        model = keras.Model(inputs, keras.layers.Dense(1)(reader(inputs)))
        model.compile("sgd", "mse")
        return model

    data = WORDS.reshape(-1, 1), np.ones((24, 1), "float32")

    class Words(models.Line):
        compiled = staticmethod(words)

        def build_training_data_loader(self) -> Any:
            records = tf.data.Dataset.from_tensor_slices(data)
            return self.context.wrap_dataset(records).batch(models.BATCH)

        build_validation_data_loader = build_training_data_loader

    found = runs(Words)(2, schedule=QUIET, global_batch_size=models.BATCH)
    path = tmp_path / "checkpoints" / found.checkpoints[2]
    alone = keras.models.load_model(str(path / "model.keras"))
    by_trial = load_model_from_checkpoint_path(path, trial_class=Words)
    asked = tf.constant([["a d"], ["c"]])
    np.testing.assert_array_equal(alone(asked), by_trial(asked))
    assert len(set(np.asarray(alone(asked)).ravel())) == 2


SEQUENCE_DATA = {
    "training": (SEQUENCES, SEQUENCES[:, -1, :1]),
    "validation": (SEQUENCES[:8] + 1, SEQUENCES[:8, 0, :1]),
}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "two optimizers that nobody wrapped": (
        models.game,
        {"validation": (models.POINTS[:4], models.SUMS[:4])},
    ),
    "variable of TensorFlow": (annealed, {}),
    "variable of TensorFlow, eagerly": (eager, {}),
    "generator of TensorFlow": (noisy, {}),
    "metric that is not named": (counted, {}),
    "states of a recurrent layer": (stateful, SEQUENCE_DATA),
}


def flat(path: Path) -> dict[str, Any]:
    return {
        f"{group}/{name}": array
        for group, held in tensors(path).items()
        for name, array in held.items()
    }


def alone(compiled: Callable[[], Any], data: Any) -> list[Any]:
    """Return the weights that Keras alone trains."""
    keras.backend.clear_session()
    seed_everything(1)
    model = compiled()
    model.fit(*data, batch_size=models.BATCH, epochs=LENGTH // EPOCH, shuffle=False, verbose=0)
    return [np.asarray(weight) for weight in model.trainable_weights]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_goes_on_with_what_attributes_held(
    runs: Any, tmp_path: Path, name: str
) -> None:
    """The plain framework is the oracle of the whole run, which is the oracle of a paused one."""
    compiled, body = CASES[name]
    made: list[Any] = []

    def remembered() -> Any:
        made.append(compiled())
        return made[-1]

    trial = type("Trial", (models.Line,), {"compiled": staticmethod(remembered), **body})
    run = runs(trial)

    def last(found: Any) -> dict[str, Any]:
        return flat(tmp_path / "checkpoints" / found.checkpoints[LENGTH])

    keras.backend.clear_session()
    whole = run(LENGTH, schedule=QUIET, global_batch_size=models.BATCH)
    weights = [np.asarray(weight) for weight in made[-1].trainable_weights]
    for mine, theirs in zip(weights, alone(compiled, trial.training), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    keras.backend.clear_session()
    first = run(LENGTH, schedule=QUIET, preempt_at=5, global_batch_size=models.BATCH)
    keras.backend.clear_session()
    second = run(
        LENGTH, schedule=QUIET, checkpoint=first.checkpoints[5], global_batch_size=models.BATCH
    )
    assert {**first.reports, **second.reports} == whole.reports
    expected, found = last(whole), last(second)
    assert expected.keys() == found.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(array, found[key])


class Played(models.Game):
    """A game that can be called, so that a script can build it before fit()."""

    def call(self, x: Any) -> Any:
        return self.critic(self.maker(x))


def played() -> Any:
    model = Played()
    model.compile(keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.05, momentum=0.9))
    model(models.POINTS)
    return model


SCRIPTS = {name: (compiled, body) for name, (compiled, body) in CASES.items() if body == {}}
SCRIPTS["states of a recurrent layer"] = CASES["states of a recurrent layer"]
SCRIPTS["two optimizers"] = played, {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_resumed_script_goes_on_with_what_attributes_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The plain framework is the oracle of both runs."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    compiled, body = SCRIPTS[name]
    data = body.get("training", models.Line.training)

    def fit(epochs: int, checkpoint: str | None = None) -> tuple[list[Any], str]:
        keras.backend.clear_session()
        seed_everything(1)
        model = compiled()
        with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as context:
            callbacks = [DeterminedCallback(context, checkpoint, 1)]
            options = {"batch_size": models.BATCH, "shuffle": False, "verbose": 0}
            model.fit(*data, epochs=epochs, callbacks=callbacks, **options)
            found: Any = context._host
            return [np.asarray(each) for each in model.trainable_weights], found.checkpoints[-1][
                0
            ].uuid

    _, checkpoint = fit(1)
    resumed, _ = fit(LENGTH // EPOCH, checkpoint)
    for mine, theirs in zip(resumed, alone(compiled, data), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def growing() -> Any:
    """Return a model whose loss scale doubles with every second step."""
    model = models.line()
    # Keras 3 has its own under another name.
    kind = keras.optimizers if KERAS_3 else keras.mixed_precision
    optimizer = kind.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=8.0, dynamic_growth_steps=2
    )
    model.compile(optimizer, "mse")
    return model


def scale_of(model: Any) -> float:
    return float(model.optimizer.dynamic_scale if KERAS_3 else model.optimizer.loss_scale)


@pytest.mark.slow
def test_loss_scale_goes_on_after_a_resume(runs: Any) -> None:
    made: list[Any] = []

    def remembered() -> Any:
        made.append(growing())
        return made[-1]

    run = runs(type("Trial", (models.Line,), {"compiled": staticmethod(remembered)}))
    first = run(LENGTH, schedule=QUIET, preempt_at=5, global_batch_size=models.BATCH)
    run(LENGTH, schedule=QUIET, checkpoint=first.checkpoints[5], global_batch_size=models.BATCH)
    assert [scale_of(model) for model in made] == [8.0 * 2**2, 8.0 * 2**6]


@pytest.mark.slow
def test_loss_scale_of_a_script_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    with core.init(checkpoint_storage=str(tmp_path / "checkpoints")) as context:
        found: Any = context._host
        for epochs in (1, 2):
            checkpoint = found.checkpoints[-1][0].uuid if epochs > 1 else None
            model, callback = growing(), DeterminedCallback(context, checkpoint, 1)
            options = {"batch_size": models.BATCH, "shuffle": False, "verbose": 0}
            model.fit(*models.Line.training, epochs=epochs, callbacks=[callback], **options)
            assert scale_of(model) == 8.0 * 2 ** (3 * epochs)
