"""The one-weight model as an estimator with what real models have.

The same is trained and evaluated by the Estimator alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_estimator.testing import OneVarTrial
from det_testing import OneVar

v1: Any = tf.compat.v1
TRAIN, EVAL = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL


def spec(
    trial: type, optimizer: Any, features: Any, mode: str, hooks: Any = lambda loss: []
) -> Any:
    """Return the model of a trial class, trained by an optimizer."""
    weight = v1.get_variable("weight", initializer=tf.zeros([]))
    seen = features
    if trial is Buffered:
        normal = v1.layers.batch_normalization(
            features[:, None], center=False, scale=False, training=mode == TRAIN
        )
        seen = normal[:, 0]
    squares = (features - weight * seen) ** 2
    loss = tf.reduce_mean(squares)
    if mode == EVAL:
        metrics = {"val_loss": v1.metrics.mean(squares), "weight": v1.metrics.mean(weight)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        step = optimizer().minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step, training_hooks=hooks(loss))


def sgd(trial: type, settings: OneVar, length: int) -> Any:
    """Return the optimizer of a trial class, where it trains so many batches."""
    lr: Any = settings.lr
    if trial is Scheduled:
        lr = v1.train.polynomial_decay(settings.lr, v1.train.get_global_step(), length, 0.0)
    return v1.train.GradientDescentOptimizer(lr)


class VariantTrial(OneVarTrial):
    """Trains a model without noise."""

    def model(self, features: Any, mode: str) -> Any:
        return spec(type(self), self.optimizer, features, mode)

    def optimizer(self) -> Any:
        return self.context.wrap_optimizer(
            sgd(type(self), self.settings, self.context.run.length.n)
        )

    def batches(self) -> Iterator[list[float]]:
        """Yield the records of each batch of an epoch, of all ranks."""
        return (self.settings.records(batch) for batch in range(self.settings.batches_per_epoch))


class Buffered(VariantTrial):
    """Has running statistics, which each rank takes from its own records."""


class Scheduled(VariantTrial):
    """Lets the learning rate fall to 0 at the trial's length."""


class Streamed(VariantTrial):
    """Reads a stream without a length, of all ranks' records."""

    def training_data(self) -> Any:
        signature = tf.TensorSpec([], tf.float32)
        stream = tf.data.Dataset.from_generator(
            lambda: (x for xs in self.batches() for x in xs), output_signature=signature
        )
        return self.context.wrap_dataset(stream).batch(self.context.get_per_slot_batch_size())


class Sharded(VariantTrial):
    """Reads its rank's share of each batch, r-th n-th, and says so."""

    def training_data(self) -> Any:
        ranks = self.context.distributed
        mine = [x for xs in self.batches() for x in xs[ranks.rank :: ranks.size]]
        data = self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices(tf.constant(mine)), shard_dataset=False
        )
        return data.batch(self.context.get_per_slot_batch_size())


class Bypassing(VariantTrial):
    """Wraps an optimizer, and trains by another."""

    def optimizer(self) -> Any:
        super().optimizer()
        return sgd(type(self), self.settings, 1)


VARIANTS: dict[str, type | str] = {
    "buffered": Buffered,
    "finishing": (
        "an estimator saves its last checkpoint before its hooks hear of the end of training"
    ),
    "scheduled": Scheduled,
    "sharded": Sharded,
    "streamed": Streamed,
    "bypassing": Bypassing,
}


class Losses(v1.train.SessionRunHook):  # type: ignore[misc]
    """Keeps the loss of each batch."""

    def __init__(self, loss: Any, found: list[float]) -> None:
        self.loss, self.found = loss, found

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self.loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.found.append(float(run_values.results))


def alone(trial: type, settings: OneVar, folder: str, length: int, found: list[float]) -> Any:
    """Return an estimator of a trial's model, as TensorFlow alone has it, that keeps its losses."""

    def model(features: Any, mode: str) -> Any:
        return spec(
            trial,
            lambda: sgd(trial, settings, length),
            features,
            mode,
            lambda loss: [Losses(loss, found)],
        )

    return tf.estimator.Estimator(model, model_dir=folder)


def evaluate(trial: type, path: Path, settings: OneVar) -> dict[str, float]:
    """Evaluate a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return validated(
            alone(trial, settings, folder, 1, []), settings, tf.train.latest_checkpoint(str(path))
        )


def plain(trial: type, settings: OneVar, batches: int) -> tuple[list[float], dict[str, float]]:
    """Train, and evaluate what was saved in the end."""
    losses: list[float] = []
    xs = [x for number in range(batches) for x in settings.records(number)]
    with tempfile.TemporaryDirectory() as folder:
        estimator = alone(trial, settings, folder, batches, losses)
        size = settings.global_batch_size
        estimator.train(
            lambda: tf.data.Dataset.from_tensor_slices(tf.constant(xs)).batch(size), steps=batches
        )
        return losses, validated(estimator, settings)


def validated(estimator: Any, settings: OneVar, checkpoint: str | None = None) -> dict[str, float]:
    """Return what the trial reports."""
    xs = settings.validation_records()
    data = lambda: tf.data.Dataset.from_tensor_slices(tf.constant(xs)).batch(2)  # noqa: E731 - an input_fn
    found = estimator.evaluate(data, checkpoint_path=checkpoint)
    return {name: float(found[name]) for name in ("val_loss", "weight")}
