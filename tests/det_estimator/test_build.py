"""What of a trial fights det is one line; the rest is taken as it is."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.det_estimator.trials import EVAL, Line, v1, with_

from det_core import DistributedContext, Every, Ranks, Schedule, Serial, Stop, TrialError, hookimpl
from det_estimator import EstimatorTrialContext

RunConfig = tf.estimator.RunConfig


def refusal(lab: Any, trial: type, **info: Any) -> str:
    with pytest.raises(TrialError) as error, lab.adapter(trial, **info):
        pass
    return str(error.value)


def configured(**settings: Any) -> type[Line]:
    """Return the trial whose estimator has a `RunConfig` of its own."""

    def build(self: Any) -> Any:
        return tf.estimator.Estimator(self.model, config=RunConfig(**settings))

    return with_(build_estimator=build)


# The estimator


def test_a_class_without_its_methods_is_named(lab: Any) -> None:
    from det_estimator import EstimatorTrial

    trial = type("Bare", (EstimatorTrial,), {"build_estimator": lambda self: None})
    assert (
        refusal(lab, trial)
        == "Bare does not define build_train_spec, build_validation_spec; every EstimatorTrial must"
    )


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("build_estimator", "Estimator"),
        ("build_train_spec", "TrainSpec"),
        ("build_validation_spec", "EvalSpec"),
    ],
)
def test_a_method_that_returns_something_else_is_named(lab: Any, method: str, kind: str) -> None:
    said = refusal(lab, with_(**{method: lambda self: None}))
    assert said == f"{method} returned NoneType; return a tf.estimator.{kind}"


def test_receivers_are_a_dict_of_functions(lab: Any) -> None:
    trial = with_(build_serving_input_receiver_fns=lambda self: {"a": 3})
    assert (
        refusal(lab, trial)
        == "build_serving_input_receiver_fns must return a dict of functions by name"
    )


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_a_strategy_of_the_estimators_own_is_refused(lab: Any, name: str) -> None:
    with (
        pytest.raises(TrialError) as error,
        lab.adapter(configured(**{name: tf.distribute.MirroredStrategy()})),
    ):
        pass
    assert (
        str(error.value)
        == f"RunConfig.{name} is a MirroredStrategy, but det starts the ranks itself; leave it out"
        " and set resources.slots_per_trial"
    )


def test_a_cluster_is_refused(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = (
        '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}'
    )
    monkeypatch.setenv("TF_CONFIG", cluster)
    assert "RunConfig has a cluster (from TF_CONFIG)" in refusal(lab, Line)


@pytest.mark.parametrize(
    ("setting", "way_out"),
    [
        ({"save_checkpoints_steps": 7}, "min_checkpoint_period"),
        ({"tf_random_seed": 7}, "reproducibility.experiment_seed"),
    ],
)
def test_a_setting_that_is_not_looked_at_is_told(
    lab: Any, setting: dict[str, int], way_out: str
) -> None:
    (name,) = setting
    with pytest.warns(
        UserWarning, match=f"RunConfig.{name} is 7, which det does not look at; set {way_out}"
    ):
        assert lab(configured(**setting), 2).losses == lab(Line, 2).losses


def test_the_model_sees_dets_directory_and_seed(lab: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Trial(Line):
        def build_estimator(self) -> Any:
            def model_fn(features: Any, mode: Any, config: Any, params: Any) -> Any:
                seen.append((config.model_dir, config.tf_random_seed, params["a"]))
                return self.model(features, mode)

            return tf.estimator.Estimator(
                model_fn, model_dir=str(tmp_path / "mine"), params={"a": 5}
            )

    lab(Trial, 1, seed=41)
    assert {(seed, a) for _, seed, a in seen} == {(42, 5)}
    assert len({directory for directory, _, _ in seen}) == 1
    assert not (tmp_path / "mine").exists()


def test_no_directory_is_left(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither det's own nor that of an estimator without a `model_dir`.

    Also where the trial cannot be built.
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    lab(Line, 1)
    refusal(lab, with_(build_train_spec=lambda self: None))
    assert os.listdir(scratch) == []


def test_the_global_step_counts_for_the_model_and_nobody_else(lab: Any) -> None:
    """A model that increments it twice a batch trains as many batches as one that does not."""

    class Twice(Line):
        def more(self) -> dict[str, Any]:
            return {}

        def loss(self, weight: Any, features: Any, mode: str) -> Any:
            with tf.control_dependencies([v1.assign_add(v1.train.get_global_step(), 1)]):
                return super().loss(weight, features + 0, mode)

    assert list(lab(Twice, 5).training) == [1, 2, 3, 4, 5]


def test_weights_to_start_from_are_taken(lab: Any, tmp_path: Path) -> None:
    """`warm_start_from`, at the trial's beginning; a checkpoint's weights go over them."""
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=tf.constant(0.5))
        session.run(weight.initializer)
        place = v1.train.Saver().save(session, str(tmp_path / "warm"))

    class Warm(Line):
        rate = 0.0

        def build_estimator(self) -> Any:
            return tf.estimator.Estimator(self.model, warm_start_from=place)

    cold = lab(Line, 2)
    assert lab(Warm, 1).validation[1]["weight"] == 0.5
    resumed = lab(Warm, 3, checkpoint=cold.checkpoints[2])
    assert resumed.validation[3]["weight"] == cold.validation[2]["weight"]


# Specs


class Counting(Line):
    """An estimator that takes no optimizer: it counts."""

    def build_estimator(self) -> Any:
        self.context.wrap_optimizer(None)
        return super().build_estimator()

    def model(self, features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", initializer=tf.zeros([]))
        loss = tf.reduce_mean(weight - features)
        if mode == EVAL:
            return tf.estimator.EstimatorSpec(
                mode, loss=loss, eval_metric_ops=self.eval_metrics(weight, features)
            )
        counted = tf.group(weight.assign_add(1.0), v1.train.get_global_step().assign_add(1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=counted)


def test_an_estimator_without_an_optimizer_is_trained(lab: Any) -> None:
    assert lab(Counting, 3).validation[3]["weight"] == 3


def test_estimator_without_optimizer_refuses_aggregation(lab: Any) -> None:
    """It refuses both an aggregation_frequency and several ranks."""
    config = {"optimizations": {"aggregation_frequency": 2}}
    with pytest.raises(
        TrialError,
        match=r"wrap_optimizer got None, and aggregation_frequency is 2; .*frequency to 1",
    ):
        lab(Counting, 3, config=config)
    ranks = DistributedContext.from_backend(Two())
    with pytest.raises(TrialError, match="wrap_optimizer got None, and there are 2 ranks"):
        EstimatorTrialContext(replace(lab.info(), distributed=ranks)).wrap_optimizer(None)


class Two(Serial):
    """The first of two ranks."""

    def __init__(self) -> None:
        self.ranks = Ranks(size=2, local_size=2)


def test_a_hook_that_fights_the_length_is_refused(lab: Any) -> None:
    trial = with_(hooks=lambda self: [v1.train.StopAtStepHook(num_steps=5)])
    assert (
        refusal(lab, trial)
        == "TrainSpec has a StopAtStepHook, but the searcher says how long a trial is; leave it out"
        " and set searcher.max_length"
    )


def test_listeners_are_refused(lab: Any) -> None:
    class Trial(Line):
        def build_train_spec(self) -> Any:
            return (
                super()
                .build_train_spec()
                ._replace(saving_listeners=[v1.train.CheckpointSaverListener()])
            )

    assert "use a det_estimator.RunHook" in refusal(lab, Trial)


def test_max_steps_is_not_looked_at(lab: Any) -> None:
    trial = with_(
        build_train_spec=lambda self: tf.estimator.TrainSpec(self.training_data, max_steps=2)
    )
    assert list(lab(trial, 5).training) == [1, 2, 3, 4, 5]


def test_a_hook_may_end_the_trial(lab: Any) -> None:
    """`request_stop` ends it as complete, behind that batch: reported, validated, saved."""

    class Enough(tf.estimator.SessionRunHook):
        def __init__(self) -> None:
            self.runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1
            if self.runs == 3:
                run_context.request_stop()

    ran = lab(
        with_(hooks=lambda self: [Enough()]), 50, schedule=Schedule(report=Every(10), policy="none")
    )
    assert ran.stop is Stop.USER_STOPPED
    assert (list(ran.training), list(ran.validation), list(ran.checkpoints)) == ([3], [3], [3])


def test_a_hook_that_ends_the_loop_by_force_is_refused(lab: Any) -> None:
    class Force(tf.estimator.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise StopIteration

    with pytest.raises(
        TrialError,
        match=r"training ended by itself at batch 0, by StopIteration of an input or a hook",
    ):
        lab(with_(hooks=lambda self: [Force()]), 5)


def test_the_trial_may_end_itself(lab: Any) -> None:
    class Trial(Line):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_stop_requested(True)

    assert lab(Trial, 50).stop is Stop.USER_STOPPED


# Build hooks


def test_a_stranger_may_wrap_the_parts(lab: Any) -> None:
    """The estimator, the optimizer and the datasets, each as the user made it."""
    seen: list[Any] = []

    class Stranger:
        @hookimpl(wrapper=True)
        def det_build_model(self) -> Any:
            estimator = yield
            seen.append(("model", type(estimator).__name__))
            return estimator

        @hookimpl(wrapper=True)
        def det_build_optimizer(self) -> Any:
            optimizer = yield
            seen.append(("optimizer", type(optimizer).__name__))
            return v1.train.GradientDescentOptimizer(0.0)

        @hookimpl(wrapper=True)
        def det_build_data_loader(self, split: str) -> Any:
            data = yield
            seen.append((split, isinstance(data, tf.data.Dataset)))
            return data.map(lambda x: x * 2)

    lab.plugins.register(Stranger(), "stranger")
    ran = lab(Line, 2)
    assert seen == [
        *(("model", "EstimatorV2"), ("training", True), ("optimizer", "GradientDescentOptimizer")),
        ("validation", True),
    ]
    assert ran.losses == {1: 10.0, 2: 50.0}  # (2·1)² and (2·2)², and a weight that stays 0
