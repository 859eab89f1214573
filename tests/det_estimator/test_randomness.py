"""Random ops of the training graph go on where they were."""

from __future__ import annotations

import random
import re
import warnings
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops
from tests.det_estimator.trials import TRAIN, Line, with_

from det_core import At, Every, Schedule
from det_estimator.loops import MAKERS, LoopedOps
from det_estimator.randomness import STATELESS, RandomOps

v1: Any = tf.compat.v1

DRAWS: dict[str, Any] = {
    "RandomUniform": lambda: tf.random.uniform([1000]),
    "RandomStandardNormal": lambda: tf.random.normal([1000]),
    "TruncatedNormal": lambda: tf.random.truncated_normal([1000]),
    "RandomUniformInt": lambda: tf.random.uniform([1000], 0, 10, tf.int64),
    "Multinomial": lambda: tf.random.categorical(tf.zeros([1, 4]), 1000),
    "RandomShuffle": lambda: tf.random.shuffle(tf.range(1000)),
    "RandomGamma": lambda: tf.random.gamma([500], [1.0, 2.0]),
    "RandomPoissonV2": lambda: tf.random.poisson([1000], 3.0),
}


class Drawn:
    """What a graph with random ops draws, session by session."""

    def __init__(self, draw: Any, seed: str = "1/0", made_anew: bool = True) -> None:
        self.graph = tf.Graph()
        random.seed(3)  # of which Keras's initializers make theirs
        with self.graph.as_default():
            v1.set_random_seed(3)
            loops = LoopedOps(self.graph, seed)
            with loops.drawing() if made_anew else nullcontext():
                self.tensor = tf.identity(draw())
            self.ops = RandomOps(self.graph, seed, loops.counts) if made_anew else None
            self.variables = v1.global_variables_initializer()

    def __call__(
        self, times: int, state: dict[str, int] | None = None
    ) -> tuple[list[Any], dict[str, int]]:
        with v1.Session(graph=self.graph) as session:
            session.run(self.variables)
            if self.ops is None:
                return [session.run(self.tensor) for _ in range(times)], {}
            self.ops.begin(session, state)
            return [session.run(self.tensor) for _ in range(times)], self.ops.state(session)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", list(STATELESS))
def test_each_kind_goes_on_in_another_session(kind: str) -> None:
    whole, _ = Drawn(DRAWS[kind])(5)
    first, state = Drawn(DRAWS[kind])(2)
    second, _ = Drawn(DRAWS[kind])(3, state)
    assert same(first + second, whole)
    assert not any(np.array_equal(a, b) for a, b in pairwise(whole))
    assert not same(Drawn(DRAWS[kind], seed="2/0")(5)[0], whole)
    assert not same(Drawn(DRAWS[kind], seed="1/1")(5)[0], whole)  # another rank


@pytest.mark.parametrize("kind", list(STATELESS))
def test_each_kind_keeps_its_distribution(kind: str) -> None:
    """Shape, type, mean and spread are those of TensorFlow's own op."""
    (ours, *_), _ = Drawn(DRAWS[kind])(1)
    (theirs, *_), _ = Drawn(DRAWS[kind], made_anew=False)(1)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.mean() == pytest.approx(theirs.mean(), abs=0.25 * theirs.std())
    assert ours.std() == pytest.approx(theirs.std(), rel=0.25)


def test_ops_of_the_same_seed_draw_the_same() -> None:
    both = Drawn(lambda: tf.stack([tf.random.uniform([3], seed=5), tf.random.uniform([3], seed=5)]))
    (drawn, *_), state = both(1)
    assert np.array_equal(drawn[0], drawn[1])
    assert list(state.values()) == [1, 1]
    (drawn, *_), _ = Drawn(lambda: tf.stack([tf.random.uniform([3]), tf.random.uniform([3])]))(1)
    assert not np.array_equal(drawn[0], drawn[1])


def test_initializers_are_left_alone() -> None:
    """They draw once, and with the graph's seed the same each time."""
    graph = tf.Graph()
    with graph.as_default():
        v1.get_variable("kernel", [3, 3])
        used = tf.random.normal([2])
        ops = RandomOps(graph, "1/0")
        with v1.Session() as session:
            ops.begin(session)
            session.run([v1.global_variables_initializer(), used + 0])
            assert list(ops.state(session)) == [f"{used.op.name}/RandomStandardNormal"]


def repeated(draw: Any, times: int = 3, at_once: int = 10) -> Any:
    """Return what a loop draws, one iteration below the other."""
    return tf.map_fn(
        lambda _: draw(),
        tf.zeros(times),
        fn_output_signature=tf.float32,
        parallel_iterations=at_once,
    )


def uniform() -> Any:
    return tf.random.uniform([2])


def dropped_out() -> Any:
    """Return the outputs of a recurrent network that drops out at each step."""
    cell = v1.nn.rnn_cell.DropoutWrapper(v1.nn.rnn_cell.BasicRNNCell(3), state_keep_prob=0.5)
    # The default initializers take their seeds from Python's generator, which threads share.
    with v1.variable_scope("network", initializer=v1.constant_initializer(0.3)):
        return v1.nn.dynamic_rnn(cell, tf.ones([2, 4, 1]), dtype=tf.float32)[0]


LOOPS: dict[str, Any] = {
    "map_fn": lambda: repeated(uniform),
    "nested": lambda: repeated(lambda: repeated(uniform)),
    "cond": lambda: tf.cond(tf.random.uniform([]) < 2, uniform, lambda: tf.zeros([2])),
    "cond in a loop": lambda: repeated(
        lambda: tf.cond(tf.constant(True), uniform, lambda: tf.zeros([2]))
    ),
    "while_loop": lambda: tf.while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * uniform()), [0, tf.ones(2)]
    )[1],
    "condition": lambda: tf.while_loop(
        lambda i: tf.random.uniform([]) < 0.99, lambda i: i + 1, [0]
    )[0],
    "dynamic_rnn": dropped_out,
    **{
        kind: lambda kind=kind: repeated(lambda: tf.cast(DRAWS[kind](), tf.float32))
        for kind in STATELESS
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LOOPS))
def test_those_in_loops_and_branches_go_on_too(name: str) -> None:
    begun = Drawn(LOOPS[name])
    assert begun.ops is not None
    assert begun.ops.stuck == []
    whole, _ = begun(5)
    first, state = Drawn(LOOPS[name])(2)
    second, _ = Drawn(LOOPS[name])(3, state)
    assert same(first + second, whole)
    assert len({each.tobytes() for each in whole}) > 1
    assert not same(Drawn(LOOPS[name], seed="2/0")(5)[0], whole)


def test_draws_in_a_loop_differ_and_do_not_depend_on_order() -> None:
    (drawn, *_), _ = Drawn(lambda: repeated(lambda: repeated(uniform, 5), 5))(1)
    assert len({float(each) for each in drawn.ravel()}) == 50
    (both, *_), _ = Drawn(lambda: tf.stack([repeated(uniform), repeated(uniform)]))(1)
    assert not np.array_equal(both[0], both[1])
    (one_by_one, *_), _ = Drawn(lambda: repeated(lambda: repeated(uniform, 5, 1), 5, 1))(1)
    assert np.array_equal(drawn, one_by_one)


def test_random_ops_remade_outside_loops_are_remade_inside_too() -> None:
    assert set(MAKERS) == set(STATELESS)


def test_outside_of_a_model_tensorflow_makes_its_ops_as_it_does() -> None:
    before = {name: getattr(gen_random_ops, name) for name in MAKERS.values()}
    with pytest.raises(ValueError, match="in the model"), LoopedOps(tf.Graph(), "1/0").drawing():
        raise ValueError("in the model")
    assert {name: getattr(gen_random_ops, name) for name in MAKERS.values()} == before


@pytest.mark.parametrize("kind", list(STATELESS))
def test_draws_differ_from_those_of_a_bare_graph(kind: str) -> None:
    assert not same(Drawn(DRAWS[kind])(3)[0], Drawn(DRAWS[kind], made_anew=False)(3)[0])


def test_what_cannot_go_on_is_named() -> None:
    """Draws in functions of the graph, and ops that have no stateless kind."""
    graph = tf.Graph()
    with graph.as_default(), LoopedOps(graph, "1/0").drawing():
        tf.function(uniform)()
        tf.random.log_uniform_candidate_sampler([[1]], 1, 2, True, 10)
        images = tf.ones([1, 8, 8, 1])
        tf.nn.fractional_max_pool(images, [1.0, 1.5, 1.5, 1.0], pseudo_random=True)
        tf.nn.fractional_avg_pool(images, [1.0, 1.5, 1.5, 1.0], pseudo_random=True)
        stuck = RandomOps(graph, "1/0").stuck
    for name in (
        *("random_uniform", "LogUniformCandidateSampler"),
        *("FractionalMaxPool", "FractionalAvgPool"),
    ):
        assert any(name in each for each in stuck)


def test_draws_in_loops_of_the_first_control_flow_are_named() -> None:
    v1.disable_control_flow_v2()
    try:
        for draw in (LOOPS["map_fn"], LOOPS["cond"]):
            ops = Drawn(draw).ops
            assert ops is not None
            assert any("random_uniform" in name for name in ops.stuck)
    finally:
        v1.enable_control_flow_v2()


class Loops(tf.estimator.SessionRunHook):
    """Adds a loop that draws to the graph."""

    def begin(self) -> None:
        self.drawn = repeated(uniform)

    def before_run(self, run_context: Any) -> Any:
        return tf.estimator.SessionRunArgs(self.drawn)


def test_draws_in_loops_that_a_hook_adds_are_named(lab: Any) -> None:
    with pytest.warns(UserWarning, match=r"random_uniform\S* \(in \S*\) begin again when a run"):
        lab(with_(hooks=lambda self: [Loops()]), 1)


class Noisy(Line):
    """With dropout of Keras and of tf.layers, noise, also in a loop, and shuffled records.

    The input draws random numbers, too.
    """

    def loss(self, weight: Any, features: Any, mode: str) -> Any:
        if mode == TRAIN:
            features = features[:, None] * (1 + tf.random.normal([2, 1], stddev=0.1))
            features = tf.map_fn(lambda x: x * (1 + tf.random.normal([], stddev=0.1)), features)
            features = v1.layers.dropout(features, 0.3, training=True)
            features = tf.keras.layers.Dropout(0.3)(features, training=True)
        return super().loss(weight, features, mode)

    def training_data(self) -> Any:
        data = self.records().map(lambda x: x + tf.random.uniform([], 0, 0.1))
        return data.shuffle(8).batch(2)


def test_a_run_of_random_ops_resumes_exactly(lab: Any) -> None:
    schedule = Schedule(report=Every(1), checkpoint=At({7}), policy="none")
    whole = lab(Noisy, 15, schedule=schedule)
    again = lab(Noisy, 15, schedule=schedule, checkpoint=whole.checkpoints[7])
    assert again.losses == {n: loss for n, loss in whole.losses.items() if n > 7}
    assert again.validation[15] == whole.validation[15]
    assert len(set(whole.losses.values())) > 10


def test_weights_of_keras_layers_depend_on_the_trials_seed_alone(lab: Any) -> None:
    """They do not depend on what has used Keras's own generator of seeds before the run."""

    def loss(self: Any, weight: Any, features: Any, mode: str) -> Any:
        out = v1.layers.dense(features[:, None], 3)
        return tf.reduce_mean((tf.reduce_sum(out, 1) - weight * features) ** 2)

    found = []
    for _ in range(2):
        found.append(lab(with_(loss=loss), 2).losses)
        tf.keras.utils.set_random_seed(3)
    assert found[0] == found[1] == lab(with_(loss=loss), 2).losses
    assert found[0] != lab(with_(loss=loss), 2, seed=5).losses


def test_when_a_run_saves_and_validates_changes_nothing(lab: Any) -> None:
    often = Schedule(report=Every(1), validate=Every(1), checkpoint=Every(2), policy="all")
    assert lab(Noisy, 9, schedule=often).losses == lab(Noisy, 9).losses


def test_a_graph_that_cannot_resume_exactly_is_told_of(lab: Any) -> None:
    def loss(self: Any, weight: Any, features: Any, mode: str) -> Any:
        return (
            tf.reduce_mean((features - weight * features) ** 2)
            + tf.function(lambda: tf.random.uniform([]))()
        )

    with pytest.warns(
        UserWarning,
        match="random_uniform.* begin again when a run is resumed, which is then not exact",
    ):
        lab(with_(loss=loss), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lab(Line, 1)


@pytest.mark.parametrize("at_once", [None, 2])
def test_pipeline_with_parallel_random_draws_warns(lab: Any, at_once: int | None) -> None:
    def records(self: Any) -> Any:
        data = Line.records(self).map(lambda x: x + 1, num_parallel_calls=2)  # draws nothing
        return data.map(lambda x: x + tf.random.uniform([], 0, 0.1), num_parallel_calls=at_once)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lab(with_(records=records), 1)
    found = [str(each.message) for each in told if "several records at a time" in str(each.message)]
    assert len(found) == (at_once is not None)
    for message in found:
        assert re.match(
            r"ParallelMapDataset\S* \(with .*random_uniform.*\) draws random numbers for several"
            r" records",
            message,
        )
