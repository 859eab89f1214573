"""Handwritten digits (8 by 8 pixels, from scikit-learn) with a small network."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

from det_keras import SequenceAdapter, TFKerasTrial
from det_keras.callbacks import ReduceLROnPlateau


def digits(validation: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of a part of the digits."""
    images, labels = load_digits(return_X_y=True)
    chosen = (np.arange(len(labels)) % 3 == 0) == validation
    return (images[chosen] / 16).astype("float32"), labels[chosen].astype("int32")


class Batches(keras.utils.Sequence):
    """Batches of digits whose brightness changes at random."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, size: int) -> None:
        super().__init__()
        self.images, self.labels, self.size = images, labels, size

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.size)

    def __getitem__(self, index: int):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.images[part] * np.float32(np.random.uniform(0.8, 1.2)), self.labels[part]


class DigitsTrial(TFKerasTrial):
    def build_model(self):
        context = self.context
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(context.get_hparam("hidden"), activation="relu"),
                keras.layers.Dropout(context.get_hparam("dropout")),
                keras.layers.Dense(10),
            ]
        )
        model = context.wrap_model(model)
        model.compile(
            optimizer=keras.optimizers.SGD(
                context.get_hparam("lr"), momentum=context.get_hparam("momentum")
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=context.get_hparams().get("steps_per_execution", 1),
        )
        return model

    def keras_callbacks(self):
        return [ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2)]

    def build_training_data_loader(self):
        """Return the digits as the kind of data that the hyperparameter `data` names.

        All learn the same.
        """
        images, labels = digits(validation=False)
        size = self.context.get_per_slot_batch_size()
        kind = self.context.get_hparams().get("data", "arrays")
        if kind == "weighted":
            return images, labels, np.ones(len(labels), dtype="float32")
        if kind == "tf.data":
            dataset = tf.data.Dataset.from_tensor_slices((images, labels))
            return (
                self.context.wrap_dataset(dataset)
                .shuffle(len(labels))
                .batch(size, drop_remainder=True)
            )
        if kind == "sequence":
            return Batches(images, labels, size)
        if kind == "adapter":
            return SequenceAdapter(
                Batches(images, labels, size), use_multiprocessing=True, workers=2
            )
        return images, labels

    def build_validation_data_loader(self):
        return digits(validation=True)
