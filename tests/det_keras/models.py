"""Models that users bring, small: each as Keras alone has it, and as a trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from det_keras import TFKerasTrial
from det_keras.versions import keras

BATCH = 4
SCALES = np.linspace(0.5, 3, 24).reshape(-1, 1, 1, 1)
IMAGES = (np.random.default_rng(0).normal(size=(24, 6, 6, 1)) * SCALES).astype("float32")
LABELS = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype("int64")
VALIDATION = IMAGES[:13], LABELS[:13]


def convolutions() -> Any:
    """Return a CNN with BatchNorm."""
    layers = [
        keras.layers.Conv2D(4, 3, use_bias=False),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.ReLU(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


POINTS = np.random.default_rng(1).normal(size=(24, 4)).astype("float32")
SUMS = POINTS.sum(axis=1, keepdims=True)
UNSEEN = POINTS[::2] + 1, SUMS[::2]


def line(**averaging: Any) -> Any:
    """Return a linear model that overshoots, so that its last weights are not its best."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9, **averaging), "mse", metrics=["mae"])
    return model


def averaged() -> Any:
    return line(use_ema=True, ema_momentum=0.8)


def averaged_halfway() -> Any:
    return line(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5)


def best_weights(monitor: str = "val_loss", **more: Any) -> Any:
    return keras.callbacks.EarlyStopping(
        monitor, **{"restore_best_weights": True, "patience": 9, **more}
    )


class Line(TFKerasTrial):
    """The linear model, on data in a fixed order.

    Heirs have another `compiled`, other data, or callbacks.
    """

    compiled = staticmethod(line)
    training: Any = (POINTS, SUMS)
    validation: Any = UNSEEN
    callbacks: Any = ()

    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False, verbose=0)
        return type(self).compiled()

    def build_training_data_loader(self) -> Any:
        return self.training

    def build_validation_data_loader(self) -> Any:
        return self.validation

    def keras_callbacks(self) -> list[Any]:
        return [make() for make in self.callbacks]


class Averaged(Line):
    """The weights that count are averages."""

    compiled = staticmethod(averaged)


class Convolutions(Line):
    """A CNN with BatchNorm."""

    compiled = staticmethod(convolutions)
    training: Any = (IMAGES, LABELS)
    validation: Any = VALIDATION


def several() -> Any:
    """Return a model of two inputs by name, with dropout, and two outputs with a loss each."""
    a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
    both = keras.layers.Dropout(0.3, seed=5)(keras.layers.Concatenate()([a, b]))
    outputs = {
        "c": keras.layers.Dense(1, name="c")(both),
        "d": keras.layers.Dense(3, name="d")(both),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    losses = {"c": "mse", "d": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(keras.optimizers.Adam(0.02), losses, loss_weights={"c": 1.0, "d": 0.5})
    return model


class Several(Line):
    """Several inputs and outputs."""

    compiled = staticmethod(several)
    training: Any = ({"a": POINTS, "b": SUMS}, {"c": SUMS, "d": np.arange(24) % 3})
    validation: Any = ({"a": POINTS[:10], "b": SUMS[:10]}, {"c": SUMS[:10], "d": np.arange(10) % 3})


class Game(keras.Model):
    """Two parts, each with an optimizer of its own.

    Nobody calls the whole, and only training calls the second part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = keras.layers.Dense(4), keras.layers.Dense(1)

    def compile(self, maker: Any, critic: Any) -> None:
        super().compile()
        self.of_maker, self.of_critic = maker, critic

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape(persistent=True) as tape:
            made = self.maker(x)
            judged = tf.reduce_mean(self.critic(made) ** 2)
            distance = tf.reduce_mean((made - x) ** 2) + judged
            apart = tf.reduce_mean((self.critic(x) - 1.0) ** 2) + judged
        for part, optimizer, loss in (
            (self.maker, self.of_maker, distance),
            (self.critic, self.of_critic, apart),
        ):
            weights = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"distance": distance, "apart": apart}

    def test_step(self, data: Any) -> Any:
        x, _ = data
        return {"distance": tf.reduce_mean((self.maker(x) - x) ** 2)}


def game() -> Any:
    model = Game()
    model.compile(keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.05, momentum=0.9))
    return model


class NeverCalled(Line):
    """A model with steps of its own."""

    compiled = staticmethod(game)
    validation: Any = (POINTS[:4], SUMS[:4])

    def build_model(self) -> Any:
        model = super().build_model()
        for name in ("of_maker", "of_critic"):
            setattr(model, name, self.context.wrap_optimizer(getattr(model, name)))
        return model


class ByItself(keras.Model):
    """Its step moves a weight by what it sees, past any optimizer."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        bias = self.trainable_variables[-1]
        bias.assign_add(0.01 * data[0][0, 0, 0, 0] * [1.0, 1.0])
        return logs


class Unreduced(Convolutions):
    def build_model(self) -> Any:
        plain = convolutions()
        model = ByItself(plain.inputs, plain.outputs)
        model.compile(keras.optimizers.SGD(0.05), plain.loss)
        return model
