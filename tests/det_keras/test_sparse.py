"""Gradients of embeddings, which are some rows, on two ranks.

As Keras alone has them for the whole batch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import words

from det_keras.backends._base import Rows, _find_rows
from det_keras.load import tensors
from det_keras.versions import KERAS_3
from det_testing._play import Cast, Request, play

LENGTH = 9
CHOSEN = ["fixed", "rmsprop", "adam"]
"""What is always tested; the others are tested in the campaign `thorough`."""
TOLERANCE = {"scaled": 5e-4, "compressed": 2e-3}
"""Numbers of 16 bits are less exact, and gradients of halves of a batch are others."""


def differing(names: list[str], backend: str, folder: Path) -> dict[str, str]:
    """Train on two ranks, and return by name how the weights differ from those of Keras alone."""
    cast = Cast(trial=words.Words, framework="keras", hooks="det_keras._hooks", backend=backend)
    requests = [
        Request(
            name=name,
            length=LENGTH,
            aggregation=2 if name == "accumulated" else 1,
            optimizations={"gradient_compression": name == "compressed"},
            hparams={"global_batch_size": words.BATCH, "optimizer": name},
        )
        for name in names
    ]
    chief, _ = play(cast, requests, folder)
    found = {}
    for name, run in chief.items():
        mine = tensors(folder / "checkpoints" / run.checkpoints[LENGTH])["weights"]
        away = {
            key: float(np.abs(np.asarray(mine[key]) - theirs).max())
            for key, theirs in words.alone(name, LENGTH).items()
            if not key.startswith("metrics/")
        }
        if not away or max(away.values()) > TOLERANCE.get(name, 1e-6):
            found[name] = str(away)
    return found


@pytest.mark.sample
@pytest.mark.process
@pytest.mark.parametrize("backend", ["collectives", "horovod"])
def test_two_ranks_train_an_embedding_as_keras_alone(backend: str, tmp_path: Path) -> None:
    """The ranks have different numbers of rows, and each has none in one batch."""
    if backend == "horovod" and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    assert not differing(CHOSEN if backend == "collectives" else CHOSEN[:2], backend, tmp_path)


@pytest.mark.process
@pytest.mark.thorough
def test_two_ranks_equal_keras_with_other_optimizers(tmp_path: Path) -> None:
    assert not differing(
        [name for name in words.OPTIMIZERS if name not in CHOSEN], "collectives", tmp_path
    )


@pytest.mark.slow
def test_rows_that_no_batch_chooses_are_the_same_on_all_ranks() -> None:
    """Keras 3 squares rows before it adds up those that occur twice.

    They must not come from each rank.
    """
    table, chosen = tf.Variable(tf.ones((4, 2))), tf.Variable([0, 1])
    outside, found = tf.range(2), dict[str, Rows]()

    @tf.function(
        input_signature=[
            tf.TensorSpec([3, 2], tf.int32),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, 2], tf.int32),
        ]
    )
    def step(few: Any, some: Any, even: Any) -> None:
        length = tf.shape(some)[1]
        iter(tf.data.Dataset.range(10).batch(5, drop_remainder=True)).get_next()

        @tf.function
        def within(few: Any) -> None:
            places = {
                "constant": tf.constant([1, 2]),
                "range": tf.where(tf.range(2) < 0, 3, tf.range(2)),
                "outside": outside + 1,
                "argument": few + 1,
                "of other length": some,
                "as long as the batch": tf.range(tf.shape(some)[0]),
                "variable": chosen,
                "drawn": tf.random.uniform([2], 0, 3, tf.int32),
                "as long as texts": tf.range(tf.shape(some)[1]),
                "as long as texts, from behind": tf.range(tf.shape(some)[-1])[None],
                "as long as texts, outside": tf.range(length),
                "as long as all texts": tf.range(tf.shape(even)[1]),
                "in each text": tf.broadcast_to(tf.range(length), tf.shape(some)),
                "in each of few texts": tf.broadcast_to(tf.range(2), tf.shape(few)),
                "zeros in each text": tf.zeros_like(some),
                "zeros in few texts": tf.zeros(tf.shape(few), tf.int32),
                "zeros in few texts and of others": tf.zeros([3, length], tf.int32),
                "zeros in texts that are read": tf.zeros([5, 2], tf.int32),
                "of each pair of places": tf.abs(tf.range(2)[:, None] - tf.range(2)),
            }
            for name, indices in places.items():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, indices))
                found[name] = _find_rows(tape.gradient(loss, table))

        within(few)

    step(tf.zeros((3, 2), tf.int32), tf.constant([[2]]), tf.constant([[2, 1]]))
    assert {name for name, rows in found.items() if rows is Rows.EQUAL} == {
        *("constant", "range", "outside", "as long as all texts", "of each pair of places")
    }
    assert {name for name, rows in found.items() if rows is Rows.OF_PLACES} == {
        *("as long as texts", "as long as texts, from behind", "as long as texts, outside")
    }
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    assert _find_rows(tape.gradient(loss, table)) is Rows.OF_RECORDS


@pytest.mark.parametrize(("records", "kind"), [(1, Rows.EQUAL), (3, Rows.OF_RECORDS)])
def test_rows_of_one_record_count_as_positions(records: int, kind: Rows) -> None:
    """Nothing in their shape distinguishes them. The page says so."""
    table, found = tf.Variable(tf.ones((4, 2))), list[Rows]()

    @tf.function(input_signature=[tf.TensorSpec([records, 2], tf.int32)])
    def step(texts: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, tf.zeros(tf.shape(texts), tf.int32)))
        found.append(_find_rows(tape.gradient(loss, table)))

    step(tf.zeros((records, 2), tf.int32))
    assert found == [kind]


@pytest.mark.slow
@pytest.mark.skipif(not KERAS_3, reason="Keras 2 does not accumulate")
def test_accumulated_rows_are_dense_as_in_keras(runs: Any) -> None:
    """On one rank, where det and Keras add up the same numbers."""
    hparams = {"global_batch_size": words.BATCH, "optimizer": "accumulated"}
    run = runs(words.Words)
    trained = run(LENGTH, aggregation=2, **hparams)
    mine = tensors(run.storage.root / trained.checkpoints[LENGTH])["weights"]
    for name, theirs in words.alone("accumulated", LENGTH).items():
        np.testing.assert_allclose(mine[name], theirs, atol=1e-6, err_msg=name)
