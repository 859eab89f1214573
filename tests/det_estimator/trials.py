"""A trial whose parts tests replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_estimator import EstimatorTrial

v1: Any = tf.compat.v1
TRAIN, EVAL, PREDICT = (
    tf.estimator.ModeKeys.TRAIN,
    tf.estimator.ModeKeys.EVAL,
    tf.estimator.ModeKeys.PREDICT,
)


class Line(EstimatorTrial):
    """y = w·x, from eight records, two a batch."""

    xs = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    rate = 0.001

    def build_estimator(self) -> Any:
        return tf.estimator.Estimator(model_fn=self.model)

    def model(self, features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", initializer=tf.zeros([]))
        outputs = {"y": weight * features}
        if mode == PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=outputs)
        loss = self.loss(weight, features, mode)
        if mode == EVAL:
            return tf.estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops=self.eval_metrics(weight, features)
            )
        step = self.optimizer().minimize(loss, global_step=v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, **self.more())

    def loss(self, weight: Any, features: Any, mode: str) -> Any:
        return tf.reduce_mean((features - weight * features) ** 2)

    def optimizer(self) -> Any:
        return self.context.wrap_optimizer(v1.train.GradientDescentOptimizer(self.rate))

    def eval_metrics(self, weight: Any, features: Any) -> dict[str, Any]:
        return {"weight": v1.metrics.mean(weight)}

    def more(self) -> dict[str, Any]:
        return {}

    def build_train_spec(self) -> Any:
        return tf.estimator.TrainSpec(self.training_data, hooks=self.hooks())

    def hooks(self) -> list[Any]:
        return []

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(self.validation_data, steps=None)

    def training_data(self) -> Any:
        return self.records().batch(2)

    def validation_data(self) -> Any:
        return self.records().batch(4)

    def records(self) -> Any:
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(tf.constant(self.xs)))


def with_(**methods: Callable[..., Any]) -> type[Line]:
    """Return the trial with other methods."""
    return type("Trial", (Line,), methods)
