"""Models that users bring, small: each as Keras alone has it, and as a trial."""

from __future__ import annotations

from typing import Any

import numpy as np

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


class Convolutions(TFKerasTrial):
    """The CNN, on data in a fixed order."""

    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False)
        return convolutions()

    def build_training_data_loader(self) -> Any:
        return IMAGES, LABELS

    def build_validation_data_loader(self) -> Any:
        return VALIDATION


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
    return keras.callbacks.EarlyStopping(monitor, **{"restore_best_weights": True, "patience": 9, **more})


class Line(TFKerasTrial):
    """The linear model, on data in a fixed order; heirs have another `compiled`, or callbacks."""

    compiled = staticmethod(line)
    callbacks: Any = ()

    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False, verbose=0)
        return type(self).compiled()

    def build_training_data_loader(self) -> Any:
        return POINTS, SUMS

    def build_validation_data_loader(self) -> Any:
        return UNSEEN

    def keras_callbacks(self) -> list[Any]:
        return [make() for make in self.callbacks]
