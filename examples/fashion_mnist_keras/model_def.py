"""Clothes (Fashion-MNIST, 28 by 28 pixels) with a small network."""

from __future__ import annotations

import sys

import numpy as np
from tensorflow import keras

from det_keras import TFKerasTrial


def load():
    """Return Fashion-MNIST.

    Where it cannot be downloaded, return made-up images of the same shapes, and say so.
    """
    try:
        return keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # urllib's and Keras's, of many kinds
        sys.stderr.write(
            f"Fashion-MNIST cannot be reached ({type(error).__name__}); training on made-up images"
            " of its shapes\n"
        )
        return made_up(6000), made_up(1000)


def made_up(count: int):
    """Return images that are brighter in the row of blocks that their label names."""
    rng = np.random.default_rng(count)
    labels = rng.integers(0, 10, size=count)
    images = rng.integers(0, 128, size=(count, 28, 28))
    rows = np.arange(28) * 10 // 28
    images += 100 * (rows[None, :, None] == labels[:, None, None])
    return images.astype("uint8"), labels.astype("uint8")


class FashionMNISTTrial(TFKerasTrial):
    def __init__(self, context) -> None:
        super().__init__(context)
        self.training, self.validation = load()

    def build_model(self):
        model = keras.Sequential(
            [
                keras.Input((28, 28)),
                keras.layers.Flatten(),
                keras.layers.Dense(self.context.get_hparam("hidden"), activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model = self.context.wrap_model(model)
        model.compile(
            optimizer=keras.optimizers.Adam(self.context.get_hparam("lr")),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self):
        images, labels = self.training
        return images / 255.0, labels

    def build_validation_data_loader(self):
        images, labels = self.validation
        return images / 255.0, labels
