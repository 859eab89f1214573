"""The conformance kit's models as estimators, with one weight and with all kinds of state."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_estimator import EstimatorTrial, RunHook
from det_estimator.adapter import STATE_FILE
from det_estimator.load import tensors
from det_testing import OneVar

v1: Any = tf.compat.v1


class OneVarTrial(EstimatorTrial):
    """Trains the one-weight model. `det_testing.OneVar` gives the expected results."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.settings = OneVar.of(context.get_hparams())

    def build_estimator(self) -> Any:
        return tf.estimator.Estimator(model_fn=self.model)

    def model(self, features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", initializer=tf.zeros([]))
        labels = features
        if mode == tf.estimator.ModeKeys.TRAIN and self.settings.noise:
            labels = features * (
                1 + self.settings.noise * tf.random.uniform(tf.shape(features), -1, 1)
            )
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


class StrictHook(RunHook):
    """Draws from Python's, NumPy's and its own generator for the model, and counts."""

    def __init__(self) -> None:
        self._generator, self._count = np.random.default_rng(5), 0

    def before_run(self, run_context: Any) -> Any:
        self._count += 1
        drawn = random.random() + np.random.rand() + self._generator.random() + self._count
        return v1.train.SessionRunArgs(
            None, {run_context.session.graph.get_tensor_by_name("drawn:0"): drawn / 10}
        )

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        state = {"count": self._count, "generator": self._generator.bit_generator.state}
        Path(checkpoint_dir, "hook.json").write_text(json.dumps(state))

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        state = json.loads(Path(checkpoint_dir, "hook.json").read_text())
        self._count, self._generator.bit_generator.state = state["count"], state["generator"]


class StrictTrial(EstimatorTrial):
    """Has, between two batches, all state of TensorFlow's graph, NumPy, Python and users' hooks.

    An epoch has three batches, in shuffled order, and a record more. Two parts have an optimizer
    each. The backbone of the first thaws with epoch 1.
    """

    def build_estimator(self) -> Any:
        return tf.estimator.Estimator(model_fn=self.model)

    def model(self, features: Any, labels: Any, mode: str) -> Any:
        training, step = mode == tf.estimator.ModeKeys.TRAIN, v1.train.get_global_step()
        centre = v1.get_variable("centre", [4], initializer=v1.zeros_initializer(), trainable=False)
        drawn = v1.placeholder_with_default(0.0, [], "drawn")
        x = features + (0.1 * self.noise(tf.shape(features)) + drawn if training else 0.0)
        hidden = v1.layers.dense(x - centre, 4, name="backbone")
        hidden = v1.layers.batch_normalization(hidden, momentum=0.8, training=training, name="norm")
        hidden = v1.layers.dropout(hidden, 0.3, training=training)
        out = v1.layers.dense(hidden, 1, name="head")
        judged = v1.layers.dense(tf.stop_gradient(out), 1, name="critic")
        loss, score = tf.reduce_mean((out - labels) ** 2), tf.reduce_mean((judged - labels) ** 2)
        if not training:
            metrics = {
                "val_loss": v1.metrics.mean((out - labels) ** 2),
                "judged": v1.metrics.mean(judged),
            }
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        v1.summary.scalar("judged", score)
        moved = centre.assign(0.9 * centre + 0.1 * tf.reduce_mean(x, 0))
        with tf.control_dependencies([moved, *v1.get_collection(v1.GraphKeys.UPDATE_OPS)]):
            steps = [self.step_first(loss, step), self.step_second(score)]
        average = v1.train.ExponentialMovingAverage(0.8)
        with tf.control_dependencies(steps):
            train = average.apply(v1.trainable_variables("head"))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def noise(self, shape: Any) -> Any:
        """Draw in the graph, and in one of its loops."""
        drawn = tf.while_loop(
            lambda n, _: n < 2, lambda n, sum_: (n + 1, sum_ + tf.random.uniform([])), (0, 0.0)
        )
        return tf.random.uniform(shape) + drawn[1]

    def step_first(self, loss: Any, step: Any) -> Any:
        rate = v1.train.cosine_decay(0.05, step, 10)
        optimizer = self.context.wrap_optimizer(v1.train.AdamOptimizer(rate))
        parts = [
            each for scope in ("backbone", "norm", "head") for each in v1.trainable_variables(scope)
        ]
        thawed = tf.cast(step >= 3, tf.float32)
        pairs = [
            (thawed * gradient if variable.op.name.startswith("backbone") else gradient, variable)
            for gradient, variable in optimizer.compute_gradients(loss, parts)
        ]
        return optimizer.apply_gradients(pairs, global_step=step)

    def step_second(self, score: Any) -> Any:
        optimizer = self.context.wrap_optimizer(v1.train.MomentumOptimizer(np.float64(0.05), 0.9))
        return optimizer.minimize(score, var_list=v1.trainable_variables("critic"))

    def build_train_spec(self) -> Any:
        for _ in range(self.context.distributed.rank):
            # No two ranks have the same state of a generator.
            random.random(), np.random.rand()
        return tf.estimator.TrainSpec(self.training_data, hooks=[StrictHook()])

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(lambda: self.records().batch(2), steps=None)

    def training_data(self) -> Any:
        moved = (
            self.records().shuffle(7).map(lambda x, y: (x + tf.random.uniform([4], 0.0, 0.1), y))
        )
        return moved.batch(self.context.get_per_slot_batch_size(), drop_remainder=True)

    def records(self) -> Any:
        size = 3 * self.context.get_global_batch_size() + 1
        x = np.random.default_rng(3).normal(size=(size, 4)).astype("float32")
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices((x, 2 * x[:, :1])))


def contents(path: Path) -> dict[str, Any]:
    """Read all of a checkpoint that belongs to the trial, except random ops that have never run."""
    state = json.loads((path / STATE_FILE).read_text())
    for rank in state["ranks"]:
        rank["random_ops"] = {name: count for name, count in rank["random_ops"].items() if count}
    hook = path / "hook.json"
    return {
        "variables": tensors(path),
        "state": state,
        "hook": json.loads(hook.read_text()) if hook.exists() else {},
    }
