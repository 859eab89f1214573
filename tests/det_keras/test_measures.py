"""Metrics of reports and of epochs: as Keras has them, wherever the reports lie."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import At, DistributedContext, Every, Schedule, TrialError
from det_keras.metrics import MetricObjects
from det_keras.rng import seed_everything
from det_keras.versions import keras

LENGTH = 12  # two epochs
EVERY_FOUR = Schedule(report=Every(4), validate=At(set()), checkpoint=At({5}), policy="none")
TRUTH = (np.random.default_rng(4).random((24, 1)) < 0.5).astype("float32")


class Worst(keras.metrics.Metric):
    """The largest error, whose state is no sum; heirs say so."""

    def __init__(self) -> None:
        super().__init__(name="worst")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = tf.reduce_max(tf.abs(tf.cast(y_true, "float32") - y_pred))
        self.largest.assign(tf.maximum(tf.convert_to_tensor(self.largest), error))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.largest)


class Declared(Worst):
    det_reduction = "max"


def guesses() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(name="auc"), Declared()]
    model.compile(keras.optimizers.SGD(0.05), "binary_crossentropy", metrics=metrics)
    return model


class Notes(keras.callbacks.Callback):
    """Notes what is said of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append({name: float(logs[name]) for name in ("loss", "auc", "worst")})


class Guesses(models.Line):
    compiled = staticmethod(guesses)
    training: Any = (models.POINTS, TRUTH)
    validation: Any = (models.POINTS[:8], TRUTH[:8])


def run_with(runs: Any, notes: list[Notes], **more: Any) -> Any:
    trial = type("Trial", (Guesses,), {"callbacks": [lambda: notes.append(Notes()) or notes[-1]]})
    keras.backend.clear_session()
    return runs(trial)(LENGTH, schedule=EVERY_FOUR, global_batch_size=models.BATCH, **more)


@pytest.mark.slow
def test_epochs_have_keras_metrics_and_callbacks_alter_no_report(runs: Any, tmp_path: Path) -> None:
    """Reports every four batches do not divide epochs of six; nor does a restart in the middle."""
    notes: list[Notes] = []
    whole = run_with(runs, notes)
    keras.backend.clear_session()
    seed_everything(1)
    plain = Notes()
    guesses().fit(
        *Guesses.training,
        batch_size=models.BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[plain],
    )
    assert [list(epoch.values()) for epoch in notes[0].epochs] == [
        pytest.approx(list(epoch.values()), rel=1e-6) for epoch in plain.epochs
    ]
    keras.backend.clear_session()
    without = runs(Guesses)(LENGTH, schedule=EVERY_FOUR, global_batch_size=models.BATCH)
    for batch, report in without.reports.items():
        assert whole.reports[batch] == pytest.approx(report, rel=1e-6)
    resumed = run_with(runs, notes, checkpoint=whole.checkpoints[5])
    assert resumed.reports == {batch: whole.reports[batch] for batch in (8, 12)}
    assert notes[1].epochs == notes[0].epochs


def trained(metric: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric])
    model.evaluate(models.POINTS, models.SUMS, verbose=0)
    return model


def test_metric_that_is_no_sum_is_refused_on_several_ranks() -> None:
    """A metric that declares how it is reduced is accepted."""

    def objects(metric: Any, ranks: Any) -> Any:
        model = trained(metric)
        found = MetricObjects(model, ranks)
        data = tf.data.Dataset.from_tensors((models.POINTS, models.SUMS))
        found.find_unknown(lambda times: model.evaluate(data.repeat(times), verbose=0))
        return found

    ranks: Any = SimpleNamespace(size=2, rank=0, allgather=lambda value: [value, value])
    with pytest.raises(TrialError, match="the metric 'worst' is no sum"):
        objects(Worst(), ranks)
    declared = objects(Declared(), ranks)
    assert declared.values()["worst"] == declared.values(everywhere=False)["worst"] > 0
    objects(keras.metrics.MeanAbsoluteError(), ranks)
    alone = objects(Worst(), DistributedContext())
    assert alone.reductions().count(None) == 1
