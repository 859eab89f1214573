"""What a Keras model may be: precisions, steps, inputs, metrics and optimizers of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from det_core import At, Every, Schedule, TrialError
from det_keras import TFKerasTrial
from det_keras.adapter import KerasAdapter
from det_keras.testing import OneVarTrial
from det_keras.versions import keras

EACH = Schedule(report=Every(1), policy="none")
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("float32")


@pytest.fixture(autouse=True)
def _policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


class Small(TFKerasTrial):
    """A classifier of two classes, with dropout; heirs change one thing."""

    options: dict[str, Any] = {"metrics": ["accuracy"]}  # noqa: RUF012

    def model(self) -> Any:
        layers = [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
        return keras.Sequential([keras.Input((4,)), *layers])

    def optimizer(self) -> Any:
        return keras.optimizers.Adam(0.01)

    def build_model(self) -> Any:
        model = self.context.wrap_model(self.model())
        model.compile(self.optimizer(), "binary_crossentropy", **self.options)
        return model

    def build_training_data_loader(self) -> Any:
        return X, Y

    def build_validation_data_loader(self) -> Any:
        return X, Y


def resumes(run: Any, **settings: Any) -> Any:
    """Check that a run which begins from a checkpoint goes on as the one that wrote it."""
    schedule = Schedule(report=Every(3), checkpoint=At({7}), policy="none")
    whole = run(16, schedule=schedule, **settings)
    second = run(16, schedule=schedule, checkpoint=whole.checkpoints[7], **settings)
    assert second.reports == {at: metrics for at, metrics in whole.reports.items() if at > 7}
    assert second.validations == {
        at: metrics for at, metrics in whole.validations.items() if at > 7
    }
    return whole


def test_a_model_with_dropout_resumes_exactly(runs: Any) -> None:
    assert set(resumes(runs(Small)).reports[3]) == {"loss", "accuracy", "batches", "epochs"}


class HalfPrecision(Small):
    def model(self) -> Any:
        keras.mixed_precision.set_global_policy("mixed_float16")
        return super().model()


@pytest.mark.slow
def test_mixed_precision_keeps_the_scale_of_the_loss(runs: Any) -> None:
    resumes(runs(HalfPrecision))
    resumes(runs(HalfPrecision), aggregation=2)


class Wrapped(HalfPrecision):
    def optimizer(self) -> Any:
        return self.context.wrap_optimizer(super().optimizer())


def test_an_optimizer_inside_of_another_is_wrapped_once(info: Any) -> None:
    adapter = KerasAdapter.create(
        Wrapped, info(config={"optimizations": {"aggregation_frequency": 2}})
    )
    (optimizer,) = adapter.context.optimizers
    adapter.close()
    assert optimizer is adapter.model.optimizer
    assert not hasattr(optimizer.inner_optimizer, "_det_waiting")


class Eager(Small):
    options = {"metrics": ["accuracy"], "run_eagerly": True}  # noqa: RUF012


@pytest.mark.slow
def test_a_model_may_run_eagerly(runs: Any) -> None:
    resumes(runs(Eager))


class Scheduled(Small):
    def optimizer(self) -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5))


@pytest.mark.slow
def test_a_schedule_of_the_learning_rate_goes_on(runs: Any) -> None:
    resumes(runs(Scheduled))


class Area(Small):
    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"metrics": [keras.metrics.AUC(name="area")]}


def test_a_metric_object_runs_over_the_period_that_is_reported(runs: Any) -> None:
    """The area under a curve is over all records of the report, not the mean of the batches."""

    class Still(Area):
        def optimizer(self) -> Any:
            return keras.optimizers.SGD(0.0)

        def model(self) -> Any:
            return keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones"),
                ]
            )

    run = runs(Still)(12, schedule=Schedule(report=Every(12), policy="none"))
    assert run.reports[12]["area"] == pytest.approx(run.validations[12]["val_area"], rel=1e-6)


class Own(keras.Model):
    """A step of its own, which returns what no metric object holds, beside one that does."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        return {**logs, "largest": tf.reduce_max(data[0])}


class OwnStep(Small):
    steps = 1

    def model(self) -> Any:
        inputs = keras.Input((4,))
        return Own(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"steps_per_execution": self.steps}

    def build_training_data_loader(self) -> Any:
        self.context.configure_fit(shuffle=False)
        return X, Y


class OwnStepInChunks(OwnStep):
    steps = 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OwnStep, OwnStepInChunks])
def test_what_a_step_of_ones_own_returns_is_averaged(runs: Any, kind: type) -> None:
    run = runs(kind)(8, schedule=Schedule(report=Every(5), policy="none"))
    largest = [X[2 * n : 2 * n + 2].max() for n in range(8)]
    assert {at: metrics["largest"] for at, metrics in run.reports.items()} == pytest.approx(
        {5: float(np.mean(largest[:5])), 8: float(np.mean(largest[5:]))}, rel=1e-6
    )
    resumes(runs(kind))


class Several(Small):
    """Two inputs by name, two outputs, a loss and weights for each."""

    def model(self) -> Any:
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        both = keras.layers.Concatenate()([a, b])
        outputs = {
            "c": keras.layers.Dense(1, name="c")(both),
            "d": keras.layers.Dense(1, name="d")(both),
        }
        return keras.Model({"a": a, "b": b}, outputs)

    def build_model(self) -> Any:
        model = self.context.wrap_model(self.model())
        model.compile("sgd", {"c": "mse", "d": "mae"}, loss_weights={"c": 1.0, "d": 0.5})
        return model

    def build_training_data_loader(self) -> Any:
        return {"a": X, "b": X + 1}, {"c": Y, "d": Y}

    build_validation_data_loader = build_training_data_loader


class ListsOfInputs(Several):
    def model(self) -> Any:
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        both = keras.layers.Concatenate()([a, b])
        return keras.Model(
            [a, b], [keras.layers.Dense(1, name="c")(both), keras.layers.Dense(1, name="d")(both)]
        )

    def build_model(self) -> Any:
        model = self.context.wrap_model(self.model())
        model.compile("sgd", ["mse", "mae"])
        return model

    def build_training_data_loader(self) -> Any:
        return [X, X + 1], [Y, Y]

    build_validation_data_loader = build_training_data_loader


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Several, ListsOfInputs])
def test_a_model_may_have_several_inputs_and_outputs(runs: Any, kind: type) -> None:
    assert {"loss", "c_loss", "d_loss"} <= set(resumes(runs(kind)).reports[3])


def test_classes_and_records_are_weighted(runs: Any) -> None:
    class Weighted(Small):
        weights: Any = None

        def build_training_data_loader(self) -> Any:
            self.context.configure_fit(shuffle=False, class_weight=self.weights)
            return X, Y

        def model(self) -> Any:
            return keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(1, activation="sigmoid", kernel_initializer="zeros"),
                ]
            )

        def optimizer(self) -> Any:
            return keras.optimizers.SGD(0.0)

    class Doubled(Weighted):
        weights = {0: 2.0, 1: 2.0}  # noqa: RUF012

    plain, doubled = runs(Weighted)(4, schedule=EACH), runs(Doubled)(4, schedule=EACH)
    assert doubled.losses == pytest.approx(
        {at: 2 * loss for at, loss in plain.losses.items()}, rel=1e-5
    )


class Adversaries(keras.Model):
    """Two parts, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(1)

    def compile(self, one: Any, two: Any) -> None:
        super().compile(loss="mse")
        self.one, self.two = one, two

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            error = tf.reduce_mean((tf.reshape(y, (-1, 1)) - self(x)) ** 2)
        for part, optimizer in ((self.first, self.one), (self.second, self.two)):
            weights = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(error, weights), weights, strict=True))
        return {"error": error}


class TwoOptimizers(Small):
    def build_model(self) -> Any:
        model = self.context.wrap_model(Adversaries())
        model.compile(
            *(self.context.wrap_optimizer(keras.optimizers.Adam(rate)) for rate in (0.01, 0.02))
        )
        return model


@pytest.mark.slow
def test_a_subclassed_model_may_have_two_optimizers(runs: Any) -> None:
    whole = resumes(runs(TwoOptimizers))
    assert whole.reports[16]["error"] > 0


class OwnOptimizer(Small):
    """Builds its optimizer in a hook of its own."""

    def build_optimizer(self) -> Any:
        return keras.optimizers.SGD(0.05)

    def build_model(self) -> Any:
        model = self.model()
        model.compile(self.optimizer, "binary_crossentropy")
        return model

    optimizer: Any


@pytest.mark.slow
def test_build_optimizer_gives_what_the_model_is_compiled_with(runs: Any, info: Any) -> None:
    with_hook = KerasAdapter.create(OwnOptimizer, info())
    with_hook.close()
    assert with_hook.context.optimizers == [with_hook.model.optimizer]
    resumes(runs(OwnOptimizer))


MISTAKES = {
    "no model": (lambda t: 3, "build_model returned int; return a keras.Model"),
    "not compiled": (
        lambda t: t.context.wrap_model(t.model()),
        "a model that is not compiled; call model.compile",
    ),
    "wrapping no model": (
        lambda t: t.context.wrap_model("x"),
        "wrap_model got str; give a keras.Model",
    ),
    "wrapping no optimizer": (
        lambda t: t.context.wrap_optimizer("sgd"),
        "wrap_optimizer got 'sgd'; give an optimizer",
    ),
    "wrapping no dataset": (
        lambda t: t.context.wrap_dataset([1]),
        "wrap_dataset got list; give a tf.data.Dataset",
    ),
    "no workers": (
        lambda t: t.context.configure_fit(workers="two"),
        "configure_fit got workers='two'; give a whole number",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_model_is_one_line_that_says_what_to_do(info: Any, name: str) -> None:
    make, message = MISTAKES[name]

    class Wrong(Small):
        def build_model(self) -> Any:
            return make(self)

    with pytest.raises(TrialError, match=message) as raised:
        KerasAdapter.create(Wrong, info())
    assert "\n" not in str(raised.value)


def test_a_trial_must_define_what_every_trial_has(info: Any) -> None:
    class Lacking(TFKerasTrial):
        pass

    with pytest.raises(
        TrialError, match="Lacking does not define build_model, build_training_data_loader"
    ):
        KerasAdapter.create(Lacking, info())


STRATEGY = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from det_testing import Runs
from det_core import DetError, Plugins
from det_keras.testing import OneVarTrial
class Mirrored(OneVarTrial):
    def build_model(self):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return super().build_model()
import pathlib, tempfile
try:
    Runs(Plugins.installed(strict=True), Mirrored, pathlib.Path(tempfile.mkdtemp()))(1)
except DetError as error:
    print("refused:", error)
"""


@pytest.mark.process
def test_a_model_under_a_strategy_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRATEGY], capture_output=True, text=True, timeout=120, check=False
    )
    assert "made its model under MirroredStrategy; leave the strategy out" in done.stdout, (
        done.stderr
    )


def test_a_dataset_is_wrapped_once(info: Any) -> None:
    adapter = KerasAdapter.create(OneVarTrial, info())
    adapter.close()
    dataset = adapter.context.wrap_dataset(tf.data.Dataset.range(4))
    made = dataset.batch(2)
    assert adapter.context.wrap_dataset(dataset) is dataset
    assert adapter.context.wrap_dataset(made) is made
