"""Handwritten digits (8 by 8 pixels, from scikit-learn) with a custom estimator."""

from __future__ import annotations

import tensorflow as tf
from sklearn.datasets import load_digits

from det_estimator import EstimatorTrial

v1 = tf.compat.v1


def digits(validation: bool):
    """Return the images, as rows of 64 numbers from 0 to 1, and the labels of one part."""
    images, labels = load_digits(return_X_y=True)
    chosen = [i for i in range(len(labels)) if (i % 3 == 0) == validation]
    return {"image": images[chosen].astype("float32") / 16}, labels[chosen].astype("int64")


class DigitsTrial(EstimatorTrial):
    def build_estimator(self):
        return tf.estimator.Estimator(model_fn=self.model_fn, params=self.context.get_hparams())

    def model_fn(self, features, labels, mode, params):
        training = mode == tf.estimator.ModeKeys.TRAIN
        hidden = v1.layers.dense(features["image"], params["hidden"], activation=tf.nn.relu)
        hidden = v1.layers.dropout(hidden, params["dropout"], training=training)
        scores = v1.layers.dense(hidden, 10)
        digit = tf.argmax(scores, axis=1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            outputs = {"digit": digit, "probabilities": tf.nn.softmax(scores)}
            exported = {"serving_default": tf.estimator.export.PredictOutput(outputs)}
            return tf.estimator.EstimatorSpec(mode, predictions=outputs, export_outputs=exported)

        loss = v1.losses.sparse_softmax_cross_entropy(labels, scores)
        if mode == tf.estimator.ModeKeys.EVAL:
            metrics = {"accuracy": v1.metrics.accuracy(labels, digit)}
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

        step = v1.train.get_global_step()
        rate = v1.train.exponential_decay(
            params["lr"], step, decay_steps=40, decay_rate=0.95, staircase=True
        )
        v1.summary.scalar("learning_rate", rate)
        optimizer = self.context.wrap_optimizer(
            v1.train.MomentumOptimizer(rate, params["momentum"])
        )
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.training_data)

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(self.validation_data, steps=None)

    def build_serving_input_receiver_fns(self):
        return {"digits": self.serving_input}

    def serving_input(self):
        image = {"image": v1.placeholder(tf.float32, [None, 64], "image")}
        return tf.estimator.export.ServingInputReceiver(image, image)

    def training_data(self):
        data = self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices(digits(validation=False))
        )
        return data.shuffle(2000).batch(self.context.get_per_slot_batch_size())

    def validation_data(self):
        data = self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices(digits(validation=True))
        )
        return data.batch(200)
