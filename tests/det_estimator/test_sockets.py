"""Gradients over det's own connections: two ranks in threads, each with a session of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator.trials import Line, v1

from det_core import BackendRecord, DistributedContext, PluginError, Ranks, Serial
from det_core.ranks.backend import RankLost
from det_core.ranks.choice import choose_backend
from det_estimator.sockets import Sockets
from det_node.backends import Socket

pytestmark = pytest.mark.process

KEY = secrets.token_bytes(32)


def two(do: Callable[[int, Any], Any]) -> list[Any]:
    """Return what two ranks, that have met, come to at the same time.

    Each gets its number and its way to the other.
    """
    address: Queue[Any] = Queue()

    def be(rank: int) -> Any:
        ranks = Ranks(rank=rank, size=2, local_rank=rank, local_size=2)
        if rank:
            socket = Socket(ranks, chief=address.get(timeout=30), key=KEY)
        else:
            socket = Socket(ranks, chief=("127.0.0.1", 0), key=KEY, ready=address.put)
        with DistributedContext.from_backend(socket) as met:
            return do(rank, met)

    with ThreadPoolExecutor(2) as threads:
        return [each.result(60) for each in [threads.submit(be, rank) for rank in range(2)]]


def settings(compress: bool = False) -> Any:
    return SimpleNamespace(gradient_compression=compress)


def reduced(
    gradients: Callable[[int], list[Any]], due: bool | None = None, compress: bool = False
) -> list[list[Any]]:
    """Return what each of two ranks has of its gradients after a reduction."""

    def do(rank: int, met: Any) -> list[Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            reduce = Sockets.join(met).reducer(settings(compress))
            found = reduce(gradients(rank), None if due is None else tf.constant(due))
            return session.run(found)  # type: ignore[no-any-return]

    return two(do)


def test_all_ranks_get_the_means_to_the_last_bit() -> None:
    values = np.random.default_rng(0).normal(size=(2, 1000)).astype("float32")
    first, second = reduced(
        lambda rank: [tf.constant(values[rank]), tf.constant(3.0 * rank, tf.float64)]
    )
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(first[0], values.mean(axis=0), rtol=1e-6)
    assert first[1] == 1.5


def test_gradients_that_are_not_due_stay_as_they_are() -> None:
    assert reduced(lambda rank: [tf.constant(float(rank))], due=False) == [[0.0], [1.0]]
    assert reduced(lambda rank: [tf.constant(float(rank))], due=True) == [[0.5], [0.5]]


def test_compressed_gradients_travel_as_16_bits() -> None:
    [[found], _] = reduced(lambda rank: [tf.constant(0.1)], compress=True)
    assert found == np.float32(np.float16(0.1)) != np.float32(0.1)
    assert found.dtype == np.float32


def test_reductions_of_a_step_have_one_order_on_all_ranks() -> None:
    """The order in which the session evaluates them does not matter."""

    def do(rank: int, met: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            reduce = Sockets.join(met).reducer(settings())
            found = [reduce([tf.constant(float(place * (1 + rank)))])[0] for place in range(20)]
            found += tf.cond(
                tf.constant(True),
                lambda: reduce([tf.constant(float(rank))]),
                lambda: [tf.constant(9.0)],
            )
            order = range(21) if rank else range(20, -1, -1)
            values = dict(zip(order, session.run([found[place] for place in order]), strict=True))
            return [values[place] for place in range(21)]

    expected = [1.5 * place for place in range(20)] + [0.5]
    assert two(do) == [expected, expected]


def test_ranks_that_reduce_different_gradients_all_fail() -> None:
    def do(rank: int, met: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            backend = Sockets.join(met)
            reduce = backend.reducer(settings())
            first = reduce([tf.constant(1.0)])
            other = tf.cond(
                tf.constant(rank == 0),
                lambda: reduce([tf.constant(1.0)]),
                lambda: reduce([tf.constant(2.0)]),
            )
            with pytest.raises(
                tf.errors.OpError, match="exchange different gradients at the same time"
            ):
                session.run([first, other])
            return str(backend.failure)

    assert (
        two(do)
        == [
            "the ranks exchange different gradients at the same time ([1, 2] by rank); compute the"
            " gradients of several optimizers in one order, outside of tf.cond"
        ]
        * 2
    )


def test_every_rank_begins_with_the_chiefs_values() -> None:
    def do(rank: int, met: Any) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            numbers = v1.get_variable("numbers", initializer=tf.constant([1.0 + rank, 2.0]))
            count = v1.get_variable(
                "count", initializer=tf.constant(7 + rank, tf.int64), use_resource=True
            )
            text = v1.get_variable("text", initializer=tf.constant(f"of {rank}"))
            begin = Sockets.join(met).broadcast_variables([numbers, count, text])
            session.run(v1.global_variables_initializer())
            session.run(begin)
            return session.run([numbers, count, text])

    (first, count, text), (second, same, own) = two(do)
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0], [1.0, 2.0])
    assert (count, same) == (7, 7)
    assert (text, own) == (b"of 0", b"of 1")


def test_a_rank_that_is_gone_is_named() -> None:
    def do(rank: int, met: Any) -> Any:
        if rank == 0:
            return None
        backend = Sockets.join(met)
        with tf.Graph().as_default(), v1.Session() as session, pytest.raises(tf.errors.OpError):
            session.run(backend.reducer(settings())([tf.constant(1.0)]))
        return backend.failure

    _, failure = two(do)
    assert isinstance(failure, RankLost)
    assert failure.rank == 0


def test_it_is_there_where_horovod_is_not(lab: Any) -> None:
    records = list(lab.plugins.backends())
    assert choose_backend("native", "estimator", records).load() is Sockets
    without = [record for record in records if record.name != "horovod"]
    assert choose_backend("auto", "estimator", without).load() is Sockets


def test_a_backend_that_knows_no_graphs_is_refused(lab: Any) -> None:
    other = BackendRecord(name="other", framework="estimator", load=lambda: Serial)

    def do(rank: int, met: Any) -> str:
        with (
            pytest.raises(PluginError) as refused,
            lab.adapter(Line, distributed=met, backend=other),
        ):
            raise AssertionError("it was made")
        return str(refused.value)

    assert (
        two(do)[0]
        == "the backend 'other' cannot reduce the gradients of an estimator; derive it from "
        "det_estimator.backend.EstimatorBackend, or set distributed.backend to native or horovod"
    )
