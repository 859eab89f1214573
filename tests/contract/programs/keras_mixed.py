"""Several batches in one execution, in 16 bits.

It has a loss scale that moves, and a learning rate that a callback sets.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tests.contract.programs.keras_parts import digits, seed_everything, train
from tests.contract.programs.suite import Outcome

from det_keras import TFKerasTrial
from det_keras.versions import keras

BATCH, RECORDS = 8, 48
REPORT = 2
"""Reports are two batches apart.

So an execution has two batches, but for those that a boundary cuts.
"""
TWO_RANKS = (None, "each rank normalizes its part, and drops out for it")
DIGITS, HELD_OUT = digits(0, RECORDS), digits(100, 20)


def build() -> Any:
    """Return a model of mixed precision, and leave the policy of the process as it was."""
    layers = keras.layers
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Flatten(),
                layers.Dense(16, use_bias=False),
                layers.BatchNormalization(momentum=0.8),
                layers.Activation("tanh"),
                layers.Dropout(0.2),
                layers.Dense(10, dtype="float32"),
            ]
        )
    finally:
        keras.mixed_precision.set_global_policy(before)


def compiled(model: Any, steps: int) -> Any:
    # Half of the first gradients overflow; the scale falls, and rises behind every fourth good
    # step.
    optimizer = keras.mixed_precision.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**20, dynamic_growth_steps=4
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=steps)
    return model


def callbacks() -> list[Any]:
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)]


class Trial(TFKerasTrial):
    def build_model(self) -> Any:
        self.context.configure_fit(shuffle=False)
        return compiled(self.context.wrap_model(build()), 3)

    def build_training_data_loader(self) -> Any:
        return DIGITS

    def build_validation_data_loader(self) -> Any:
        return HELD_OUT

    def keras_callbacks(self) -> list[Any]:
        return callbacks()


def plain() -> Outcome:
    """Train by executions of one batch, as more would hide what lies between them."""
    seed_everything()
    batches, held_out = (
        tf.data.Dataset.from_tensor_slices(data).batch(BATCH) for data in (DIGITS, HELD_OUT)
    )
    model = compiled(build(), 1)
    return train(
        model, batches, held_out, epoch=RECORDS // BATCH, period=REPORT, callbacks=callbacks()
    )
