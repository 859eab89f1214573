"""A model whose words have vectors, of which a batch trains some.

And optimizers that treat those in ways of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tests.det_estimator.trials import EVAL, Line, v1

BATCH = 2
TEXTS = np.array([[1, 2], [2, 5], [0, 0], [0, 4], [3, 3], [0, 0], [1, 0], [4, 4]])
"""Texts of two words, of which zeros are none.

Each of two ranks has a batch in which it has none.
"""


def loss_of(texts: Any) -> Any:
    """Return the loss of a batch. The vector of all words is made before those of single ones."""
    start = np.linspace(-1, 1, 18, dtype="float32").reshape(6, 3)
    vector = v1.get_variable("vector", initializer=tf.constant([1.0, -2.0, 0.5]), use_resource=True)
    table = v1.get_variable("table", initializer=start, use_resource=True)
    places = tf.where(texts > 0)
    found = tf.gather(table, tf.gather_nd(texts, places))
    bags = tf.math.unsorted_segment_sum(found, places[:, 0], tf.shape(texts)[0])
    return tf.reduce_mean((tf.reduce_sum(bags * vector, 1) - 1.0) ** 2)


def clipped(optimizer: Any, loss: Any) -> Any:
    """Return a step of an optimizer of TensorFlow 1 by gradients that are clipped."""
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.3)
    return optimizer.apply_gradients(
        zip(gradients, variables, strict=True), v1.train.get_or_create_global_step()
    )


def updated(optimizer: Any, loss: Any) -> Any:
    """Return a step of an optimizer of Keras."""
    return optimizer.get_updates(loss, v1.trainable_variables())


_TRAIN, _LEGACY = v1.train, tf.keras.optimizers.legacy
OPTIMIZERS = {
    "v1": [
        (clipped, lambda: _TRAIN.MomentumOptimizer(0.05, 0.9)),
        (clipped, lambda: _TRAIN.AdagradOptimizer(0.05)),
        (clipped, lambda: _TRAIN.RMSPropOptimizer(0.05, momentum=0.5)),
        (clipped, lambda: _TRAIN.AdamOptimizer(0.05)),
        (clipped, lambda: _TRAIN.FtrlOptimizer(0.05)),
    ],
    "keras": [
        (updated, lambda: _LEGACY.SGD(0.05, momentum=0.9)),
        (updated, lambda: _LEGACY.RMSprop(0.05, momentum=0.5)),
        (updated, lambda: _LEGACY.Adam(0.05, amsgrad=True)),
        (updated, lambda: _LEGACY.Adagrad(0.05)),
    ],
}


def model(features: Any, mode: str, optimizer: Any) -> Any:
    loss = loss_of(features)
    step = None if mode == EVAL else clipped(optimizer(), loss)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def rmsprop() -> Any:
    return v1.train.RMSPropOptimizer(0.05, momentum=0.5)


def records() -> Any:
    return tf.data.Dataset.from_tensor_slices(TEXTS)


def alone(folder: str) -> Any:
    """Return an estimator of the model, as TensorFlow alone has it."""
    return tf.estimator.Estimator(
        lambda features, labels, mode: model(features, mode, rmsprop), model_dir=folder
    )


class Words(Line):
    """The model, trained by det."""

    def model(self, features: Any, mode: str) -> Any:
        return model(features, mode, lambda: self.context.wrap_optimizer(rmsprop()))

    def records(self) -> Any:
        return self.context.wrap_dataset(records())

    def training_data(self) -> Any:
        return self.records().batch(self.context.get_per_slot_batch_size())
