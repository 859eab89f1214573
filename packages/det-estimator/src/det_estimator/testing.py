"""The conformance kit's one-weight model, as an estimator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_estimator import EstimatorTrial
from det_testing import OneVar

v1: Any = tf.compat.v1


class OneVarTrial(EstimatorTrial):
    """Trains the one-weight model; `det_testing.OneVar` says what must come of it."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())

    def build_estimator(self) -> Any:
        return tf.estimator.Estimator(model_fn=self.model)

    def model(self, features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", initializer=tf.zeros([]))
        labels = features
        if mode == tf.estimator.ModeKeys.TRAIN and self.settings.noise:
            labels = features * (1 + self.settings.noise * tf.random.uniform(tf.shape(features), -1, 1))
        squares = (labels - weight * features) ** 2
        loss = tf.reduce_mean(squares)
        if mode == tf.estimator.ModeKeys.EVAL:
            metrics = {"val_loss": v1.metrics.mean(squares), "weight": v1.metrics.mean(weight)}
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        optimizer = self.context.wrap_optimizer(v1.train.GradientDescentOptimizer(self.settings.lr))
        step = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    def build_train_spec(self) -> Any:
        return tf.estimator.TrainSpec(self.training_data)

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(self.validation_data, steps=None)

    def training_data(self) -> Any:
        settings = self.settings
        xs = [x for batch in range(settings.batches_per_epoch) for x in settings.records(batch)]
        data = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(tf.constant(xs)))
        if settings.shuffle:
            data = data.shuffle(len(xs))
        return data.batch(self.context.get_per_slot_batch_size())

    def validation_data(self) -> Any:
        data = tf.data.Dataset.from_tensor_slices(tf.constant(self.settings.validation_records()))
        return self.context.wrap_dataset(data).batch(2)
