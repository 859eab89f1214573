"""Random ops of the training graph go on where they were."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator.trials import TRAIN, Line, with_

from det_core import At, Every, Schedule
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
    """What a graph with one random op draws, session by session."""

    def __init__(self, draw: Any, seed: str = "1/0", made_anew: bool = True) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(3)
            self.tensor = tf.identity(draw())
            self.ops = RandomOps(self.graph, seed) if made_anew else None

    def __call__(self, times: int, state: dict[str, int] | None = None) -> tuple[list[Any], dict[str, int]]:
        with v1.Session(graph=self.graph) as session:
            if self.ops is None:
                return [session.run(self.tensor) for _ in range(times)], {}
            self.ops.begin(session, state)
            return [session.run(self.tensor) for _ in range(times)], self.ops.state(session)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


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


def test_what_cannot_go_on_is_named() -> None:
    """Draws in loops and functions of the graph, and candidate samplers, of which no stateless kind exists."""
    graph = tf.Graph()
    with graph.as_default():
        tf.while_loop(lambda i: i < 3, lambda i: i + tf.random.uniform([], 1, 2, tf.int32), [0])
        tf.random.log_uniform_candidate_sampler([[1]], 1, 2, True, 10)
        stuck = RandomOps(graph, "1/0").stuck
    assert any("random_uniform" in name for name in stuck)
    assert any("LogUniformCandidateSampler" in name for name in stuck)


class Noisy(Line):
    """With dropout of Keras and of tf.layers, noise, shuffling of records, and random numbers in the input."""

    def loss(self, weight: Any, features: Any, mode: str) -> Any:
        if mode == TRAIN:
            features = features[:, None] * (1 + tf.random.normal([2, 1], stddev=0.1))
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


def test_when_a_run_saves_and_validates_changes_nothing(lab: Any) -> None:
    often = Schedule(report=Every(1), validate=Every(1), checkpoint=Every(2), policy="all")
    assert lab(Noisy, 9, schedule=often).losses == lab(Noisy, 9).losses


def test_a_graph_that_cannot_resume_exactly_is_told_of(lab: Any) -> None:
    def loss(self: Any, weight: Any, features: Any, mode: str) -> Any:
        noise = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + tf.random.uniform([])), [0, 0.0])[1]
        return tf.reduce_mean((features - weight * features) ** 2) + noise

    with pytest.warns(UserWarning, match="begin anew when a run is resumed, which is then not exact"):
        lab(with_(loss=loss), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lab(Line, 1)
