"""What the Keras programs share: data, and the plain `fit` that is watched batch by batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tests.contract.programs.suite import LENGTH, SEED, Outcome, is_reported, is_validated

from det_keras.load import tensors
from det_keras.state import write_state
from det_keras.versions import KERAS_3, keras
from det_keras.weights import write_weights


def seed_everything() -> None:
    """Seed as a trial is seeded."""
    if not KERAS_3:
        # A trial does so for its whole process. Without it, layers behind random ones begin with
        # other weights, and the outcome depends on whether a trial has run in this process.
        keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(SEED)
    tf.random.set_global_generator(tf.random.Generator.from_seed(SEED))


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Reads and resets the metrics of each period, validates, and stops after `LENGTH` batches."""

    def __init__(self, period: int, evaluate: Callable[[], dict[str, float]]) -> None:
        super().__init__()
        self.training: list[dict[str, float]] = []
        self.validation: dict[int, dict[str, float]] = {}
        self._done, self._period, self._evaluate = 0, period, evaluate

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done += 1
        if is_reported(self._done, self._period):
            self.training.append({name: float(value) for name, value in logs.items()})
            self.model.reset_metrics()
        if is_validated(self._done) and self._done < LENGTH:
            self.validation[self._done] = self._evaluate()
            # An evaluation leaves its own sums in the metrics.
            self.model.reset_metrics()
        self.model.stop_training = self._done == LENGTH


def train(
    model: Any,
    batches: Any,
    held_out: Any,
    *,
    epoch: int,
    period: int = 1,
    callbacks: Any = (),
    class_weight: Any = None,
) -> Outcome:
    """Train by `fit` on batches, of which an epoch has so many, and validate by `evaluate`."""

    def evaluate() -> dict[str, float]:
        found = model.evaluate(held_out, verbose=0, return_dict=True)
        return {f"val_{name}": float(value) for name, value in found.items()}

    watch = Watch(period, evaluate)
    model.fit(
        batches.repeat(),
        steps_per_epoch=epoch,
        epochs=-(-LENGTH // epoch),
        callbacks=[*callbacks, watch],
        class_weight=class_weight,
        verbose=0,
    )
    # What fit does in its end belongs to the weights that count.
    watch.validation[LENGTH] = evaluate()
    model.reset_metrics()
    with tempfile.TemporaryDirectory() as folder:
        write_weights(model, Path(folder))
        write_state({}, Path(folder))
        return Outcome(watch.training, watch.validation, tensors(Path(folder))["weights"])


def digits(first: int, count: int) -> tuple[Any, Any]:
    """Return some of scikit-learn's digits, of 8 by 8 pixels, and which they are."""
    images, labels = load_digits(return_X_y=True)
    chosen = slice(first, first + count)
    return (images[chosen] / 16).astype(np.float32).reshape(-1, 8, 8, 1), labels[chosen].astype(
        np.int64
    )
