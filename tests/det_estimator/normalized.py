"""A small network with BatchNorm, which begins with the same numbers wherever it is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tests.det_estimator.trials import EVAL, TRAIN, Line, v1

BATCH = 4
X = (np.random.default_rng(0).normal(size=(24, 3)) * np.linspace(0.5, 3, 24).reshape(-1, 1)).astype(
    "float32"
)
Y = X.sum(axis=1, keepdims=True)


def network(features: Any, labels: Any, mode: str, optimizer: Any) -> Any:
    """Return the spec of the model, trained by an optimizer."""
    hidden = v1.layers.batch_normalization(
        v1.layers.dense(features, 4, kernel_initializer=tf.constant_initializer(0.3)),
        momentum=0.8,
        training=mode == TRAIN,
    )
    outputs = v1.layers.dense(
        tf.nn.relu(hidden), 1, kernel_initializer=tf.constant_initializer(0.2)
    )
    loss = tf.reduce_mean((outputs - labels) ** 2)
    if mode == EVAL:
        return tf.estimator.EstimatorSpec(
            mode,
            loss=loss,
            eval_metric_ops={"off": v1.metrics.mean_absolute_error(labels, outputs)},
        )
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        step = optimizer().minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


def sgd() -> Any:
    return v1.train.MomentumOptimizer(0.01, 0.9)


def records(count: int = 24) -> Any:
    return tf.data.Dataset.from_tensor_slices((X[:count], Y[:count]))


class Normalized(Line):
    """The network, trained by det."""

    def build_estimator(self) -> Any:
        return tf.estimator.Estimator(model_fn=self.model)

    def model(self, features: Any, labels: Any, mode: str) -> Any:
        return network(features, labels, mode, lambda: self.context.wrap_optimizer(sgd()))

    def training_data(self) -> Any:
        return self.context.wrap_dataset(records()).batch(self.context.get_per_slot_batch_size())

    def validation_data(self) -> Any:
        return self.context.wrap_dataset(records(13)).batch(self.context.get_per_slot_batch_size())


def alone(folder: str) -> Any:
    """Return an estimator of the network, as TensorFlow alone has it."""
    return tf.estimator.Estimator(
        lambda features, labels, mode: network(features, labels, mode, sgd), model_dir=folder
    )


def evaluated(folder: str, checkpoint: str | None = None) -> dict[str, Any]:
    return alone(folder).evaluate(lambda: records(13).batch(BATCH), checkpoint_path=checkpoint)
