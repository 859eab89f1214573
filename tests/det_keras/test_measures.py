"""Metrics of reports and of epochs: as Keras has them, wherever the reports lie."""

from __future__ import annotations

import warnings
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_core import At, DistributedContext, Every, Schedule, TrialError
from det_keras.build import training_step
from det_keras.evaluation import Evaluation
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


class Listed(keras.metrics.Metric):
    """The largest error, from a list of all errors; eager only."""

    def __init__(self) -> None:
        super().__init__(name="worst")
        self.errors: Any = []

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.errors.append(tf.reduce_max(tf.abs(tf.cast(y_true, "float32") - y_pred)))

    def result(self) -> Any:
        return max(float(error.numpy()) for error in self.errors) if len(self.errors) else 0.0

    def reset_state(self) -> None:
        self.errors = []


class Hidden(Listed):
    """Its state is in an object that only its own class knows."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = deque()

    def reset_state(self) -> None:
        self.errors = deque()


def guesses(worst: Any = Declared, eager: bool = False) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(name="auc"), worst()]
    optimizer = keras.optimizers.SGD(0.05)
    model.compile(optimizer, "binary_crossentropy", metrics=metrics, run_eagerly=eager)
    return model


def listed() -> Any:
    return guesses(Listed, eager=True)


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


def run_with(runs: Any, notes: list[Notes], model: Any = guesses, **more: Any) -> Any:
    parts = {
        "callbacks": [lambda: notes.append(Notes()) or notes[-1]],
        "compiled": staticmethod(model),
    }
    trial = type("Trial", (Guesses,), parts)
    keras.backend.clear_session()
    return runs(trial)(LENGTH, schedule=EVERY_FOUR, global_batch_size=models.BATCH, **more)


@pytest.mark.slow
@pytest.mark.parametrize("model", [guesses, listed])
def test_epochs_have_keras_metrics_and_callbacks_alter_no_report(runs: Any, model: Any) -> None:
    """Reports every four batches do not divide epochs of six; nor does a restart in the middle.

    A metric may keep its state in variables or in a list.
    """
    notes: list[Notes] = []
    whole = run_with(runs, notes, model)
    keras.backend.clear_session()
    seed_everything(1)
    plain = Notes()
    model().fit(
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
    alone = type("Trial", (Guesses,), {"compiled": staticmethod(model)})
    without = runs(alone)(LENGTH, schedule=EVERY_FOUR, global_batch_size=models.BATCH)
    for batch, report in without.reports.items():
        assert whole.reports[batch] == pytest.approx(report, rel=1e-6)
    resumed = run_with(runs, notes, model, checkpoint=whole.checkpoints[5])
    assert resumed.reports == {batch: whole.reports[batch] for batch in (8, 12)}
    assert notes[1].epochs == notes[0].epochs


def test_epoch_with_a_partial_last_batch_has_keras_metrics(runs: Any) -> None:
    """Its records count once each, and the losses of its batches by their records."""
    size = 5

    def batches(self: Any = None) -> Any:
        records = tf.data.Dataset.from_tensor_slices(Guesses.training)
        return (self.context.wrap_dataset(records) if self else records).batch(size)

    notes: list[Notes] = []
    parts = {
        "callbacks": [lambda: notes.append(Notes()) or notes[-1]],
        "build_training_data_loader": batches,
    }
    keras.backend.clear_session()
    run = runs(type("Trial", (Guesses,), parts))
    run(2 * 5, schedule=EVERY_FOUR, global_batch_size=size)
    keras.backend.clear_session()
    seed_everything(1)
    plain = Notes()
    guesses().fit(batches(), epochs=2, verbose=0, callbacks=[plain])
    assert len(plain.epochs) == 2
    assert [list(epoch.values()) for epoch in notes[0].epochs] == [
        pytest.approx(list(epoch.values()), rel=1e-6) for epoch in plain.epochs
    ]


class Vectors(keras.Model):
    """Its steps return a vector, a text, and a loss of 16 bits beside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def more(self, logs: Any) -> Any:
        return {
            **logs,
            "each": tf.zeros(3),
            "half": tf.cast(tf.reduce_sum(self.dense.bias) * 0 + 0.5, tf.bfloat16),
        }

    def train_step(self, data: Any) -> Any:
        return self.more(super().train_step(data))

    def test_step(self, data: Any) -> Any:
        return self.more(super().test_step(data))


def vectors() -> Any:
    model = Vectors()
    model.compile("sgd", "mse")
    return model


class Errors(keras.metrics.Sum):
    """Has several values."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred)

    def result(self) -> Any:
        return tf.stack([tf.convert_to_tensor(super().result())] * 2)


def several_errors() -> Any:
    model = models.line()
    model.compile("sgd", "mse", metrics=[Errors(name="each")])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("model", [vectors, several_errors])
def test_metric_that_is_no_number_is_named_once(runs: Any, model: Any) -> None:
    """It is left out of the reports of training and of validations."""
    keras.backend.clear_session()
    trial = type("Trial", (models.Line,), {"compiled": staticmethod(model)})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = runs(trial)(6, schedule=EVERY_FOUR, global_batch_size=models.BATCH)
    said = [str(each.message) for each in told if "left out of the reports" in str(each.message)]
    assert [text.split()[:3] for text in said] == [["the", "metric", "'each'"]]
    assert not {"each", "val_each"} & {*found.reports[4], *found.validations[6]}
    if model is vectors:
        assert found.reports[4]["half"] == found.validations[6]["val_half"] == 0.5


@pytest.mark.slow
def test_metric_that_is_no_sum_is_named_where_epochs_need_sums(runs: Any) -> None:
    with pytest.warns(UserWarning, match="the metric 'worst' is no sum: .* an epoch has its value"):
        run_with(runs, [], lambda: guesses(Worst))


@pytest.mark.slow
def test_metric_with_hidden_state_is_read_before_it_is_reset(runs: Any) -> None:
    """It is named, because no checkpoint has its state."""
    notes: list[Notes] = []
    with pytest.warns(UserWarning, match="the metric 'worst' has no state that det finds"):
        found = run_with(runs, notes, lambda: guesses(Hidden, eager=True))
    declared = run_with(runs, notes)
    # The period of the first report is within the first epoch.
    assert found.reports[4]["worst"] == pytest.approx(declared.reports[4]["worst"], rel=1e-6)
    assert all(0 < epoch["worst"] < 1 for epoch in notes[0].epochs)


DATA = tf.data.Dataset.from_tensors((models.POINTS, models.SUMS))
RANKS: Any = SimpleNamespace(size=2, rank=0, allgather=lambda value: [value, value])


def trained(metric: Any, eager: bool = False) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric], run_eagerly=eager)
    model.evaluate(models.POINTS, models.SUMS, verbose=0)
    return model


def test_metric_that_is_no_sum_is_refused_on_several_ranks() -> None:
    """A metric that declares how it is reduced is accepted."""

    def objects(metric: Any, ranks: Any, eager: bool = False) -> Any:
        model = trained(metric, eager)
        found = MetricObjects(model, ranks)
        found.find_unknown(lambda times: model.evaluate(DATA.repeat(times), verbose=0), pieces=True)
        return found

    ranks = RANKS
    with pytest.raises(TrialError, match="the metric 'worst' is no sum"):
        objects(Worst(), ranks)
    declared = objects(Declared(), ranks)
    assert declared.values()["worst"] == declared.values(everywhere=False)["worst"] > 0
    objects(keras.metrics.MeanAbsoluteError(), ranks)
    alone = objects(Worst(), DistributedContext())
    assert alone.reductions().count(None) == 1
    with pytest.raises(TrialError, match="the metric 'worst' has no state that det finds"):
        objects(Hidden(), ranks, eager=True)
    collected = objects(Listed(), ranks, eager=True)
    own = collected.state()[-1]["errors"]
    assert [float(each) for each in collected.together()[-1]["errors"]] == [*own, *own]


def test_declared_maximum_of_two_ranks_is_that_of_one() -> None:
    """Each rank has another half of the records, and another maximum."""

    def seen(records: slice, ranks: Any) -> Any:
        seed_everything(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Declared(), "mae"])
        model.evaluate(models.POINTS[records], models.SUMS[records], verbose=0)
        return MetricObjects(model, ranks)

    chief, other = slice(0, 12), slice(12, 24)
    second = seen(other, DistributedContext())
    together: Any = SimpleNamespace(size=2, rank=0, allgather=lambda value: [value, second.state()])
    first = seen(chief, together)
    whole = seen(slice(None), DistributedContext()).values()
    found = first.values()
    assert found == pytest.approx(whole, rel=1e-6)
    assert found["worst"] == whole["worst"]
    assert first.values(everywhere=False)["worst"] != second.values()["worst"]


class Watches(keras.Model):
    """Its step alone updates a metric, after dropout."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.drop, self.dense = keras.layers.Dropout(0.5), keras.layers.Dense(1)
        self.watched = metric

    def call(self, x: Any, training: Any = None) -> Any:
        return self.dense(self.drop(x, training=training))

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        x, y = data
        self.watched.update_state(y, self(x, training=True))
        return {**logs, "worst": self.watched.result()}


class Total(keras.metrics.Mean):
    """A sum of the user's own."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred)


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_metric_of_a_training_step_alone_is_checked_too(eager: bool) -> None:
    """The check changes no weight, no state of the optimizer and no generator."""

    def check(metric: Any) -> Any:
        seed_everything(1)
        model = Watches(metric)
        model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=eager)
        model.evaluate(DATA, verbose=0)
        objects = MetricObjects(model, RANKS)
        weights, step = model.dense.get_weights(), training_step(model, DATA, objects)
        try:
            objects.find_unknown(
                lambda times: model.evaluate(DATA.repeat(times), verbose=0),
                lambda: step,
                pieces=True,
            )
        finally:
            for one, other in zip(model.dense.get_weights(), weights, strict=True):
                np.testing.assert_array_equal(one, other)
            assert int(model.optimizer.iterations.numpy()) == 0

    message = "nothing shows that the state of the metric" if eager else "the metric 'worst' is no"
    with pytest.raises(TrialError, match=message):
        check(Worst())
    check(Declared())
    if not eager:
        check(Total(name="total"))


def test_rank_without_validation_data_adds_no_training_metrics() -> None:
    model = trained("mae")
    model.train_on_batch(models.POINTS, models.SUMS)
    sent: list[Any] = []
    ranks: Any = SimpleNamespace(
        size=2, allgather=lambda value: sent.append(value) or [value, value or {"loss": 1.0}]
    )
    objects = MetricObjects(model, ranks)
    before = objects.state()
    assert any(np.any(each) for each in before)
    Evaluation(model, SimpleNamespace(validation=lambda: None), objects, ranks)([])  # type: ignore[arg-type]
    assert not any(np.any(each) for each in sent[0])
    for one, other in zip(objects.state(), before, strict=True):
        np.testing.assert_array_equal(one, other)
