"""Reading metric objects and beginning them anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from det_core import DistributedContext
from det_keras.metrics import MetricObjects
from det_keras.versions import keras

METRICS = [
    ["accuracy"],
    [keras.metrics.AUC()],
    [keras.metrics.Precision(), keras.metrics.Recall()],
    [keras.metrics.MeanIoU(num_classes=2)],
    [keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: y_pred - y_true, name="bias")],
]


def trained(metrics: list[Any]) -> Any:
    """Return a model that has seen some batches."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    train(model)
    return model


def train(model: Any) -> None:
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(16, 3)), rng.integers(0, 2, size=(16, 1)).astype("float32")
    (
        model.train_on_batch(inputs, targets, reset_metrics=False)
        if hasattr(model, "_train_counter")
        else model.train_on_batch(inputs, targets)
    )


@pytest.mark.parametrize(
    "metrics", METRICS, ids=lambda metrics: str(getattr(metrics[0], "name", metrics[0]))
)
def test_metrics_of_keras_are_taken_as_they_are_read(metrics: list[Any]) -> None:
    model = trained(metrics)
    objects = MetricObjects(model, DistributedContext())
    for _ in range(2):
        before = objects.values()
        assert set(before) > {"loss"}
        assert objects.take(everywhere=True) == before
        assert not any(np.any(state) for state in objects.state())
        train(model)


def test_a_metric_of_ones_own_is_reset_each_time() -> None:
    class Own(keras.metrics.Mean):
        resets = 0

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return super().update_state(y_pred)

        def reset_state(self) -> None:
            Own.resets += 1
            super().reset_state()

    model = trained([Own(name="own")])
    objects = MetricObjects(model, DistributedContext())
    for _ in range(3):
        before, Own.resets = objects.values(), 0
        assert objects.take(everywhere=True) == before
        assert Own.resets > 0
        train(model)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_metric_that_returns_its_variable_is_read_before_reset(as_tensor: bool) -> None:
    class Positives(keras.metrics.Metric):
        """Counts what is predicted to be positive, as Keras's page on metrics has it."""

        def __init__(self) -> None:
            super().__init__(name="positives")
            self.count = self.add_weight(name="count", initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.count.assign(self.count + tf.cast(tf.shape(y_pred)[0], "float32"))

        def result(self) -> Any:
            return tf.convert_to_tensor(self.count) if as_tensor else self.count

    objects = MetricObjects(trained([Positives()]), DistributedContext())
    assert objects.take(everywhere=True)["positives"] == 16
    assert objects.values()["positives"] == 0
