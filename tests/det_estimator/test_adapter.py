"""The adapter under core's loop: metrics, hooks, summaries, checkpoints."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator.trials import EVAL, TRAIN, Line, v1, with_

from det_core import At, CheckpointError, Every, Schedule, TrialError
from det_core.checkpoint import write_checkpoint
from det_estimator import RunHook

# Metrics


def test_scalar_summaries_are_metrics_of_each_batch(lab: Any) -> None:
    """Those of the training graph, by their tags; vectors and images are for TensorBoard."""

    def loss(self: Any, weight: Any, features: Any, mode: str) -> Any:
        v1.summary.scalar("records/mean", tf.reduce_mean(features))
        v1.summary.histogram("records", features)
        return tf.reduce_mean((features - weight * features) ** 2)

    ran = lab(with_(loss=loss), 3, schedule=Schedule(report=Every(2), policy="none"))
    assert [ran.training[n]["records/mean"] for n in (2, 3)] == [2.5, 5.5]
    assert sorted(ran.training[2]) == ["batches", "epochs", "loss", "records/mean"]


@pytest.mark.parametrize("frequency", [1, 2])
def test_a_summary_of_a_weight_has_its_value_before_the_step(lab: Any, frequency: int) -> None:
    """Whichever TensorFlow would read or update first."""

    class Summarized(Line):
        def loss(self, weight: Any, features: Any, mode: str) -> Any:
            loss = super().loss(weight, features, mode)
            with tf.control_dependencies([loss]):
                slow = tf.linalg.trace(tf.linalg.inv(tf.eye(400) + 0 * loss))
            with tf.control_dependencies([slow]):
                v1.summary.scalar("held", weight.read_value())
            return loss

    schedule = Schedule(report=Every(1), validate=Every(1), policy="none", validate_first=True)
    config = {"optimizations": {"aggregation_frequency": frequency}}
    ran = lab(Summarized, 6, schedule=schedule, config=config)
    before = {n + 1: metrics["weight"] for n, metrics in ran.validation.items() if n < 6}
    assert {n: metrics["held"] for n, metrics in ran.training.items()} == pytest.approx(before)


def test_not_a_number_is_reported_as_it_is(lab: Any) -> None:
    loss = lambda self, weight, features, mode: weight * float("nan")  # noqa: E731
    assert math.isnan(lab(with_(loss=loss), 1).losses[1])


def test_summaries_are_written_at_their_pace(lab: Any) -> None:
    def loss(self: Any, weight: Any, features: Any, mode: str) -> Any:
        v1.summary.histogram("records", features)
        return tf.reduce_mean((features - weight * features) ** 2)

    def build(self: Any) -> Any:
        config = tf.estimator.RunConfig(save_summary_steps=3)
        return tf.estimator.Estimator(self.model, config=config)

    lab(with_(loss=loss, build_estimator=build), 8)
    (events,) = (lab.root / "tensorboard").glob("events*")
    found = [event.step for event in v1.train.summary_iterator(str(events)) if event.summary.value]
    assert found == [0, 3, 6]


def test_validation_is_of_the_whole_set_or_of_so_many_steps(lab: Any) -> None:
    metrics = lambda self, weight, features: {"x": v1.metrics.mean(features)}  # noqa: E731
    assert lab(with_(eval_metrics=metrics), 1).validation[1]["x"] == 4.5
    one = lambda self: tf.estimator.EvalSpec(self.validation_data, steps=1)  # noqa: E731
    assert lab(with_(eval_metrics=metrics, build_validation_spec=one), 1).validation[1]["x"] == 2.5
    assert lab(with_(eval_metrics=metrics), 1, quick=True).validation[1]["x"] == 2.5


def test_keras_and_tensorflow_metrics_reset_at_each_validation(lab: Any) -> None:
    def metrics(self: Any, weight: Any, features: Any) -> dict[str, Any]:
        mean = tf.keras.metrics.Mean()
        mean.update_state(features)
        return {"keras": mean, "count": v1.metrics.true_positives(features > 0, features > 0)}

    ran = lab(
        with_(eval_metrics=metrics),
        4,
        schedule=Schedule(report=Every(2), validate=Every(2), policy="none"),
    )
    assert [(row["keras"], row["count"]) for row in ran.validation.values()] == [(4.5, 8.0)] * 2


def test_a_metric_may_be_reduced_by_python(lab: Any) -> None:
    """A function gets every batch's values, a reducer what it gathered.

    Each validation begins anew.
    """
    from det_estimator import MetricReducer

    class Largest(MetricReducer):
        def __init__(self) -> None:
            self.value = 0.0

        def accumulate(self, metric: Any) -> Any:
            self.value = max(self.value, float(metric["x"].max()) + float(metric["w"]))
            return self.value

        def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
            return max(per_slot_metrics)

    def metrics(self: Any, weight: Any, features: Any) -> dict[str, Any]:
        median = self.context.make_metric(
            features, lambda batches: np.median(np.concatenate(batches)), np.float32
        )
        largest = self.context.make_metric({"x": features, "w": weight}, Largest(), np.float64)
        return {"median": median, "largest": largest}

    ran = lab(
        with_(eval_metrics=metrics, rate=0.0),
        2,
        schedule=Schedule(report=Every(1), validate=Every(1)),
    )
    assert [(row["median"], row["largest"]) for row in ran.validation.values()] == [(4.5, 8.0)] * 2


def test_a_reducer_is_a_function_or_a_reducer(lab: Any) -> None:
    def metrics(self: Any, weight: Any, features: Any) -> dict[str, Any]:
        return {"x": self.context.make_metric(features, "mean", np.float32)}

    with pytest.raises(
        TrialError,
        match="make_metric got 'mean' as its reducer; give a function or a MetricReducer",
    ):
        lab(with_(eval_metrics=metrics), 1)


# Optimizers


def test_an_optimizer_that_is_not_wrapped_is_named(lab: Any) -> None:
    bare = lambda self: v1.train.GradientDescentOptimizer(0.1)  # noqa: E731
    with pytest.raises(TrialError) as error, lab.adapter(with_(optimizer=bare)):
        pass
    assert (
        str(error.value)
        == "no optimizer was wrapped; pass it through context.wrap_optimizer(optimizer) right after"
        " creating it"
    )


def test_what_is_no_optimizer_is_named(lab: Any) -> None:
    wrong = lambda self: self.context.wrap_optimizer(0.1)  # noqa: E731
    with pytest.raises(TrialError, match="wrap_optimizer got float; give a "):
        lab(with_(optimizer=wrong), 1)


@pytest.mark.parametrize("frequency", [1, 2])
def test_an_optimizer_wrapped_twice_is_wrapped_once(lab: Any, frequency: int) -> None:
    twice = lambda self: self.context.wrap_optimizer(Line.optimizer(self))  # noqa: E731
    config = {"optimizations": {"aggregation_frequency": frequency}}
    assert (
        lab(with_(optimizer=twice), 4, config=config).losses == lab(Line, 4, config=config).losses
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamOptimizer", "MomentumOptimizer", "FtrlOptimizer"])
def test_slots_and_powers_are_part_of_the_checkpoint(lab: Any, name: str) -> None:
    """With aggregated gradients, of which some wait, and without."""
    more = {"momentum": 0.9} if name == "MomentumOptimizer" else {}
    trial = with_(
        optimizer=lambda self: self.context.wrap_optimizer(getattr(v1.train, name)(0.01, **more))
    )
    schedule = Schedule(report=Every(1), checkpoint=At({5}), policy="none")
    for frequency in (1, 2):
        config = {"optimizations": {"aggregation_frequency": frequency}}
        whole = lab(trial, 8, schedule=schedule, config=config)
        again = lab(trial, 8, schedule=schedule, config=config, checkpoint=whole.checkpoints[5])
        assert again.losses == {n: loss for n, loss in whole.losses.items() if n > 5}
        assert again.validation[8] == whole.validation[8]


@pytest.mark.parametrize("frequency", [1, 2])
def test_what_an_optimizer_waits_for_runs_once_for_each_batch(lab: Any, frequency: int) -> None:
    """Such as updates of statistics: not also when variables are initialized."""

    class Counting(Line):
        def loss(self, weight: Any, features: Any, mode: str) -> Any:
            if mode == TRAIN:
                with tf.init_scope():
                    seen = v1.get_variable("seen", initializer=tf.zeros([]), trainable=False)
                self.counted = seen.assign_add(tf.reduce_sum(features))
            return super().loss(weight, features, mode)

        def optimizer(self) -> Any:
            optimizer, counted = super().optimizer(), self.counted
            minimize = optimizer.minimize

            def waiting(*arguments: Any, **more: Any) -> Any:
                with tf.control_dependencies([counted]):
                    return minimize(*arguments, **more)

            optimizer.minimize = waiting
            return optimizer

    config = {"optimizations": {"aggregation_frequency": frequency}}
    ran = lab(Counting, 4, config=config)
    assert lab.variables(ran.checkpoints[4])["seen"] == sum(Counting.xs)


def test_aggregated_gradients_may_be_clipped_between(lab: Any) -> None:
    """The global step counts batches all the same."""

    class Clipping(Line):
        rate = 0.1

        def model(self, features: Any, mode: str) -> Any:
            spec = super().model(features, mode)
            if mode != TRAIN:
                return spec._replace(
                    eval_metric_ops={
                        **spec.eval_metric_ops,
                        "step": v1.metrics.mean(v1.train.get_global_step()),
                    }
                )
            optimizer = self.optimizer()
            pairs = [
                (tf.clip_by_value(g, -1.0, 1.0), v)
                for g, v in optimizer.compute_gradients(spec.loss)
            ]
            return spec._replace(
                train_op=optimizer.apply_gradients(pairs, v1.train.get_global_step())
            )

    ran = lab(Clipping, 5, config={"optimizations": {"aggregation_frequency": 2}})
    assert ran.validation[5]["weight"] == pytest.approx(0.2)
    assert ran.validation[5]["step"] == 5


def test_gradients_from_elsewhere_cannot_be_aggregated(lab: Any) -> None:
    class Elsewhere(Line):
        def optimizer(self) -> Any:
            optimizer = super().optimizer()
            theirs = v1.train.GradientDescentOptimizer(0.1)
            optimizer.compute_gradients = theirs.compute_gradients
            return optimizer

    with pytest.raises(
        TrialError, match="that compute_gradients\\(\\) of the wrapped optimizer did not give"
    ):
        lab(Elsewhere, 1, config={"optimizations": {"aggregation_frequency": 2}})


# Hooks


class Noting(RunHook):
    """Notes what it is told."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def begin(self) -> None:
        self.weight = next(v for v in v1.global_variables() if v.op.name == "weight")
        self.notes.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.notes.append(("session", float(session.run(self.weight))))

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        self.notes.append(("load", Path(checkpoint_dir, "note").read_text()))

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "note").write_text("theirs")
        self.notes.append("saved")

    def end(self, session: Any) -> None:
        self.notes.append("end")

    def on_trial_close(self) -> None:
        self.notes.append("close")


def test_hooks_are_told_of_the_trials_life(lab: Any) -> None:
    notes: list[Any] = []
    trial = with_(hooks=lambda self: [Noting(notes)])
    first = lab(trial, 2)
    assert notes == ["begin", ("session", 0.0), "saved", "end", "close"]
    with lab.opened(first.checkpoints[2]) as path:
        assert (path / "note").read_text() == "theirs"
    notes.clear()
    lab(trial, 3, checkpoint=first.checkpoints[2])
    weight = pytest.approx(first.validation[2]["weight"])
    assert notes == [("load", "theirs"), "begin", ("session", weight), "saved", "end", "close"]


def test_hooks_see_every_step_and_change_nothing(lab: Any) -> None:
    class Counting(tf.estimator.SessionRunHook):
        steps = 0

        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs(v1.train.get_global_step())

        def after_run(self, run_context: Any, run_values: Any) -> None:
            type(self).steps += 1

    assert lab(with_(hooks=lambda self: [Counting()]), 5).losses == lab(Line, 5).losses
    assert Counting.steps == 5


def test_the_models_own_hooks_take_part(lab: Any) -> None:
    notes: list[Any] = []

    class Of(tf.estimator.SessionRunHook):
        def __init__(self, name: str) -> None:
            self.name = name

        def after_run(self, run_context: Any, run_values: Any) -> None:
            notes.append(self.name)

    class Trial(Line):
        def more(self) -> dict[str, Any]:
            return {"training_hooks": [Of("all")], "training_chief_hooks": [Of("chief")]}

        def model(self, features: Any, mode: str) -> Any:
            spec = super().model(features, mode)
            return spec._replace(evaluation_hooks=[Of("evaluation")]) if mode == EVAL else spec

    lab(Trial, 2)
    assert notes == ["all", "chief"] * 2 + ["evaluation"] * 2


def test_a_trial_that_fails_closes_its_hooks(lab: Any) -> None:
    notes: list[Any] = []

    class Failing(Noting):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        lab(with_(hooks=lambda self: [Failing(notes)]), 3)
    assert notes[-1] == "close"


# Checkpoints


def test_a_checkpoint_is_tensorflows_own(lab: Any) -> None:
    ran = lab(Line, 3)
    variables = lab.variables(ran.checkpoints[3])
    assert sorted(variables) == ["global_step", "weight"]
    assert (variables["global_step"], variables["weight"]) == (
        3,
        pytest.approx(ran.validation[3]["weight"]),
    )
    with lab.opened(ran.checkpoints[3]) as path:
        assert tf.train.latest_checkpoint(str(path)) == str(path / "model.ckpt-3")


def test_a_checkpoint_of_another_model_is_one_line(lab: Any) -> None:
    class Other(Line):
        def loss(self, weight: Any, features: Any, mode: str) -> Any:
            return super().loss(weight, features, mode) + v1.get_variable(
                "another", initializer=tf.ones([])
            )

    first = lab(Line, 2)
    with pytest.raises(
        CheckpointError,
        match=r"the checkpoint does not fit the trial's graph: .*; name a checkpoint",
    ) as error:
        lab(Other, 3, checkpoint=first.checkpoints[2])
    assert "\n" not in str(error.value)


def test_a_directory_without_a_checkpoint_is_named(lab: Any, tmp_path: Path) -> None:
    with (
        lab.adapter(Line) as adapter,
        pytest.raises(CheckpointError, match=r"holds no det_estimator\.json"),
    ):
        adapter.load(tmp_path)


def test_pythons_and_numpys_numbers_go_on(lab: Any) -> None:
    import random

    class Drawing(tf.estimator.SessionRunHook):
        drawn: list[Any] = []  # noqa: RUF012

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.drawn.append((random.random(), np.random.rand()))

    trial = with_(hooks=lambda self: [Drawing()])
    schedule = Schedule(report=Every(1), validate=Every(2), checkpoint=At({3}), policy="none")
    whole = lab(trial, 6, schedule=schedule)
    drawn, Drawing.drawn = Drawing.drawn, []
    lab(trial, 6, schedule=schedule, checkpoint=whole.checkpoints[3])
    assert Drawing.drawn == drawn[3:]


def test_a_savers_own_choice_is_for_evaluation(lab: Any) -> None:
    """A scaffold's saver that restores averages works on det's checkpoints.

    Evaluations of moving averages have such a saver.
    """

    class Averaged(Line):
        def model(self, features: Any, mode: str) -> Any:
            average = tf.train.ExponentialMovingAverage(0.0)
            spec = super().model(features, mode)
            weight = next(v for v in v1.global_variables() if v.op.name == "weight")
            if mode == TRAIN:
                with tf.control_dependencies([spec.train_op]):
                    return spec._replace(train_op=average.apply([weight]))
            names = {
                average.average_name(weight): weight,
                "global_step": v1.train.get_global_step(),
            }
            saver = v1.train.Saver(names)
            return spec._replace(scaffold=v1.train.Scaffold(saver=saver))

    ran = lab(Averaged, 3)
    assert ran.validation[3]["weight"] == pytest.approx(lab(Line, 3).validation[3]["weight"])
    assert ran.validation[3]["weight"] > 0


# Determined's checkpoints


def write_old(directory: Path, kind: str, shape: tuple[int, ...] = ()) -> None:
    """Write the variables as TensorFlow did for Determined.

    In the model directory, or in a saved model.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        features = v1.placeholder(tf.float32, [None])
        weight = v1.get_variable("weight", initializer=tf.fill(shape, 42.0))
        step = v1.train.create_global_step()
        session.run(v1.global_variables_initializer())
        session.run(step.assign(7))
        if kind == "model directory":
            v1.train.Saver().save(session, str(directory / "model.ckpt"), global_step=7)
        else:
            outputs = {"y": tf.reduce_sum(weight) * features}
            v1.saved_model.simple_save(
                session, str(directory / "line" / "1600000000"), {"x": features}, outputs
            )


def keep_old(lab: Any, kind: str, shape: tuple[int, ...] = ()) -> str:
    """Keep such a checkpoint as `det migrate checkpoints` does, and return its uuid."""

    def fill(directory: Path) -> None:
        write_old(directory, kind, shape)
        (directory / "loop.json").write_text(json.dumps({"batches": 7, "trial_id": 9}))

    return write_checkpoint(lab.storage, fill, framework="estimator", batches=7).uuid


@pytest.mark.parametrize("kind", ["model directory", "saved model"])
def test_warm_start_from_a_checkpoint_of_determined(lab: Any, kind: str) -> None:
    schedule = Schedule(report=Every(1), policy="all", validate_first=True)
    ran = lab(with_(rate=0.0), 2, schedule=schedule, checkpoint=keep_old(lab, kind))
    assert ran.validation[0]["weight"] == 42.0
    assert lab.variables(ran.checkpoints[2])["global_step"] == 2


def test_variables_of_another_model_are_refused(lab: Any) -> None:
    with pytest.raises(
        CheckpointError, match=r"weight, of the shape \[\], has the shape \[3\] there"
    ):
        lab(Line, 1, checkpoint=keep_old(lab, "model directory", (3,)))


class Counts(tf.estimator.SessionRunHook):
    """Counts the batches, from the begin of the session on."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.names, self.options = {"count"}, {"loud": True}

    def begin(self) -> None:
        self.count, self.step = 0, v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.count = (self.count or 0) + 1


class Begins(Counts):
    """Changes only when training begins."""

    after_run = tf.estimator.SessionRunHook.after_run


class Files(RunHook):
    """Counts, too, and restores its count by itself."""

    count = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.count += 1

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        self.count = int((Path(checkpoint_dir) / "count").read_text())

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "count").write_text(str(self.count))


@pytest.mark.parametrize("hooks", [[Counts, Begins, Files], [Begins, Files]])
def test_attributes_of_hooks_that_nobody_saves_are_named_once(lab: Any, hooks: list[Any]) -> None:
    schedule = Schedule(report=Every(1), checkpoint=Every(2), policy="none")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lab(with_(hooks=lambda self: [make() for make in hooks]), 6, schedule=schedule)
    found = [str(each.message) for each in told if "of hooks" in str(each.message)]
    assert len(found) == (Counts in hooks)
    assert all(
        text.startswith("training changes Counts.count of hooks, which no") for text in found
    )
