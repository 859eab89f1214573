"""Handwritten digits with a convolutional graph of TensorFlow 1.

It is from the days of placeholders and tf.layers.
"""

from __future__ import annotations

import tensorflow as tf
from sklearn.datasets import load_digits

from det_estimator import EstimatorTrial

v1 = tf.compat.v1


def network(images, training, dropout):
    """The graph as written for TensorFlow 1, but for the names that `tf.compat.v1` has now."""
    with v1.variable_scope("network", reuse=v1.AUTO_REUSE):
        images = tf.reshape(images, [-1, 8, 8, 1])
        maps = v1.layers.conv2d(images, 16, 3, padding="same", use_bias=False, name="conv")
        maps = tf.nn.relu(v1.layers.batch_normalization(maps, training=training, name="norm"))
        maps = v1.layers.max_pooling2d(maps, 2, 2, name="pool")
        flat = v1.layers.flatten(maps, name="flat")
        flat = v1.layers.dropout(flat, dropout, training=training, name="dropout")
        return v1.layers.dense(flat, 10, name="scores")


class DigitsTrial(EstimatorTrial):
    def build_estimator(self):
        return tf.estimator.Estimator(model_fn=self.model_fn)

    def model_fn(self, features, labels, mode):
        training = mode == tf.estimator.ModeKeys.TRAIN
        scores = network(features, training, self.context.get_hparam("dropout"))
        digit = tf.argmax(scores, axis=1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"digit": digit})

        loss = v1.losses.sparse_softmax_cross_entropy(labels, scores)
        if mode == tf.estimator.ModeKeys.EVAL:
            metrics = {"accuracy": v1.metrics.accuracy(labels, digit)}
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

        optimizer = self.context.wrap_optimizer(
            v1.train.AdamOptimizer(self.context.get_hparam("lr"))
        )
        gradients = optimizer.compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in gradients], 5.0)
        v1.summary.scalar("gradient_norm", norm)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            pairs = zip(clipped, [variable for _, variable in gradients], strict=True)
            step = optimizer.apply_gradients(pairs, global_step=v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    def build_train_spec(self):
        return tf.estimator.TrainSpec(
            lambda: self.data(False).shuffle(2000).batch(self.context.get_per_slot_batch_size())
        )

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(lambda: self.data(True).batch(200), steps=None)

    def data(self, validation):
        images, labels = load_digits(return_X_y=True)
        chosen = [i for i in range(len(labels)) if (i % 3 == 0) == validation]
        arrays = images[chosen].astype("float32") / 16, labels[chosen].astype("int64")
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(arrays))
