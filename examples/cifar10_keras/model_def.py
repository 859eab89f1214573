"""CIFAR-10 (32 by 32 pixels, in colour) with a convolutional network.

It is read through a cache on disk.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

from det_keras import TFKerasTrial


def load():
    """Return CIFAR-10 and its name.

    Where it cannot be downloaded, return made-up images of the same shapes, and say so.
    """
    try:
        return (*keras.datasets.cifar10.load_data(), "cifar10")
    except Exception as error:  # urllib's and Keras's, of many kinds
        sys.stderr.write(
            f"CIFAR-10 cannot be reached ({type(error).__name__}); training on made-up images of"
            " its shapes\n"
        )
        return made_up(5000), made_up(1000), "cifar10-made-up"


def made_up(count: int):
    """Return images that are brighter in the row of blocks that their label names."""
    rng = np.random.default_rng(count)
    labels = rng.integers(0, 10, size=(count, 1))
    images = rng.integers(0, 128, size=(count, 32, 32, 3))
    rows = np.arange(32) * 10 // 32
    images += 100 * (rows[None, :, None, None] == labels[:, :, None, None])
    return images.astype("uint8"), labels.astype("uint8")


def scaled(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


class CIFARTrial(TFKerasTrial):
    def __init__(self, context) -> None:
        super().__init__(context)
        self.training, self.validation, self.name = load()

    def build_model(self):
        context = self.context
        dropout = keras.layers.Dropout(context.get_hparam("dropout"))
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                dropout,
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model = context.wrap_model(model)
        model.compile(
            optimizer=keras.optimizers.Adam(context.get_hparam("lr")),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self):
        @self.context.experimental.cache_train_dataset(self.name, "1", shuffle=True)
        def records():
            return tf.data.Dataset.from_tensor_slices(self.training)

        batches = records().map(scaled).batch(self.context.get_per_slot_batch_size())
        return batches.prefetch(2)

    def build_validation_data_loader(self):
        @self.context.experimental.cache_validation_dataset(f"{self.name}-validation", "1")
        def records():
            return tf.data.Dataset.from_tensor_slices(self.validation)

        return records().map(scaled).batch(100)
