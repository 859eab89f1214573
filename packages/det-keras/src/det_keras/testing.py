"""The conformance kit's models in Keras: one with one weight, and one with all kinds of state."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras import TFKerasTrial
from det_keras.load import tensors
from det_keras.state import read_state
from det_keras.versions import KERAS_3, keras
from det_testing import OneVar


class NoisyLabels(keras.Model):  # type: ignore[misc]
    """A model that adds noise to its labels in training.

    Keras can save the random numbers of the noise.
    """

    noise = 0.0

    def set_noise(self, noise: float) -> None:
        """Set the noise, and make its generator a part of the model."""
        self.noise = noise
        if KERAS_3:
            self.drawn = keras.random.SeedGenerator()
        else:
            self.drawn = tf.random.Generator.from_seed(int(np.random.randint(2**31)))

    def train_step(self, data: Any) -> Any:
        x, y = data[0], data[1]
        if self.noise:
            y = y * (1 + self.noise * (2 * self._uniform(tf.shape(y)) - 1))
        return super().train_step((x, y, *data[2:]))

    def _uniform(self, shape: Any) -> Any:
        return (
            keras.random.uniform(shape, seed=self.drawn) if KERAS_3 else self.drawn.uniform(shape)
        )


class ReportWeight(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds the weight to what a validation reports."""

    def on_test_end(self, logs: Any = None) -> None:
        logs["weight"] = float(self.model.trainable_variables[0].numpy().item())


class OneVarTrial(TFKerasTrial):
    """Trains the one-weight model. `det_testing.OneVar` gives the expected results."""

    steps_per_execution = 1

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())
        context.configure_fit(shuffle=self.settings.shuffle)

    def build_model(self) -> Any:
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
        model = self.context.wrap_model(NoisyLabels(inputs, outputs))
        model.set_noise(self.settings.noise)
        model.compile(
            keras.optimizers.SGD(self.settings.lr),
            "mse",
            steps_per_execution=self.steps_per_execution,
        )
        return model

    def build_training_data_loader(self) -> Any:
        xs = [
            x
            for batch in range(self.settings.batches_per_epoch)
            for x in self.settings.records(batch)
        ]
        return self.data(np.array(xs, dtype="float32").reshape(-1, 1))

    def build_validation_data_loader(self) -> Any:
        x = np.array(self.settings.validation_records(), dtype="float32").reshape(-1, 1)
        return x, x

    def data(self, x: Any) -> Any:
        """Return training data. A subclass may return it as another type."""
        return x, x

    def keras_callbacks(self) -> list[Any]:
        return [ReportWeight()]


class StrictModel(keras.Model):  # type: ignore[misc]
    """Two parts with an optimizer each, a generator, normalization, dropout, assigned variables.

    Gradients of the backbone count once `knobs.thawed` is 1.
    """

    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.backbone, self.norm = layers.Dense(4), layers.BatchNormalization(momentum=0.8)
        self.drop, self.head, self.critic = layers.Dropout(0.3), layers.Dense(1), layers.Dense(1)
        self.centre = self.add_weight(
            name="centre", shape=(4,), initializer="zeros", trainable=False
        )
        # In an object that Keras does not track, so that its files do not hold the variables.
        thawed, level = (tf.Variable(0.0, trainable=False) for _ in range(2))
        self.knobs = SimpleNamespace(thawed=thawed, level=level)
        self.drawn = keras.random.SeedGenerator() if KERAS_3 else tf.random.Generator.from_seed(5)
        self.distance, self.judged = (
            keras.metrics.MeanAbsoluteError("distance"),
            keras.metrics.Mean("judged"),
        )

    def compile(self, first: Any, second: Any, **options: Any) -> None:
        super().compile(first, **options)
        self.second = second

    @property
    def metrics(self) -> list[Any]:
        return [self.distance, self.judged]

    def call(self, x: Any, training: bool = False) -> Any:
        out = self.head(
            self.drop(
                self.norm(self.backbone(x - self.centre), training=training), training=training
            )
        )
        return out, self.critic(tf.stop_gradient(out))

    def train_step(self, data: Any) -> Any:
        x, y = data
        noise = (
            keras.random.uniform(tf.shape(x), seed=self.drawn)
            if KERAS_3
            else self.drawn.uniform(tf.shape(x))
        )
        x = (
            x
            + self.knobs.level
            + 0.1 * (noise + tf.random.get_global_generator().uniform(tf.shape(x)))
        )
        with tf.GradientTape(persistent=True) as tape:
            out, judged = self(x, training=True)
            loss, score = tf.reduce_mean((out - y) ** 2), tf.reduce_mean((judged - y) ** 2)
        frozen, mine, critic = (
            part.trainable_weights for part in (self.backbone, self.head, self.critic)
        )
        mine = [*mine, *self.norm.trainable_weights]
        thawing = [self.knobs.thawed * gradient for gradient in tape.gradient(loss, frozen)]
        gradients = [*tape.gradient(loss, mine), *thawing]
        self.optimizer.apply_gradients(zip(gradients, [*mine, *frozen], strict=True))
        self.second.apply_gradients(zip(tape.gradient(score, critic), critic, strict=True))
        self.centre.assign(0.9 * self.centre + 0.1 * tf.reduce_mean(x, 0))
        self.distance.update_state(y, out)
        self.judged.update_state(score)
        return {"loss": loss, **{metric.name: metric.result() for metric in self.metrics}}

    def test_step(self, data: Any) -> Any:
        x, y = data
        out, judged = self(x, training=False)
        self.distance.update_state(y, out)
        self.judged.update_state(judged)
        return {metric.name: metric.result() for metric in self.metrics}


class StrictCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Thaws the backbone with epoch 1, lowers a learning rate with each, draws numbers, and counts.

    It draws from each generator of the process and from one of its own.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank, self._generator = rank, np.random.default_rng(5)
        self._sums: dict[str, Any] = {"count": np.int64(0), "drawn": np.zeros(3, np.float32)}

    def on_train_begin(self, logs: Any = None) -> None:
        for _ in range(self._rank):
            # No two ranks have the same state of a global generator.
            random.random(), np.random.rand(), tf.random.get_global_generator().uniform([])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.knobs.thawed.assign(float(epoch >= 1))
        self.model.second.learning_rate = np.float64(0.05 / (1 + epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._sums["count"] += 1
        self._sums["drawn"] += self._generator.random(3, np.float32)
        noise = random.random() + np.random.rand() + float(self._sums["drawn"].sum()) / 10
        self.model.knobs.level.assign(0.05 * noise)

    def get_state(self) -> dict[str, Any]:
        return {"sums": self._sums, "generator": self._generator.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sums, self._generator.bit_generator.state = state["sums"], state["generator"]


class EpochLogs(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the logs of epochs, and shrinks the critic's weights by them.

    It has no methods for its state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, float]] = []
        self.best = np.float32(np.inf)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Those of validations depend on when there are validations.
        self.found.append(
            {name: value for name, value in logs.items() if not name.startswith("val_")}
        )
        self.best = min(self.best, np.float32(logs["distance"]))
        for weight in self.model.critic.trainable_weights:
            weight.assign(weight * (1 - 0.01 * self.best))


class StrictTrial(TFKerasTrial):
    """Has, between two batches, all state of Keras, TensorFlow, NumPy, Python and users' callbacks.

    An epoch has three batches, in shuffled order, and a record more. Callbacks may not change which
    weights are trained, so a variable of the model thaws the backbone.
    """

    is_eager = False

    def build_model(self) -> Any:
        model = self.context.wrap_model(StrictModel())
        falling = keras.optimizers.schedules.CosineDecay(0.05, 10)
        first = keras.optimizers.AdamW(falling, weight_decay=0.1)
        model.compile(
            first, keras.optimizers.SGD(np.float64(0.05), momentum=0.9), run_eagerly=self.is_eager
        )
        return model

    def build_training_data_loader(self) -> Any:
        draw = np.random.default_rng(3)
        size = 3 * self.context.get_global_batch_size() + 1
        x = draw.normal(size=(size, 4)).astype("float32")
        return x, 2 * x[:, :1]

    def build_validation_data_loader(self) -> Any:
        return self.build_training_data_loader()

    def keras_callbacks(self) -> list[Any]:
        return [StrictCallback(self.context.distributed.rank), EpochLogs()]


def contents(path: Path) -> dict[str, Any]:
    """Read all of a checkpoint that belongs to the trial."""
    return {"weights": tensors(path)["weights"], "state": read_state(path)}
