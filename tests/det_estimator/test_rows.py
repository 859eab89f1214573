"""Gradients of embeddings, which are some rows, on two ranks.

As TensorFlow alone has them for the whole batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator import rows
from tests.det_estimator.test_sockets import reduced, two
from tests.det_estimator.trials import v1

from det_estimator.load import tensors
from det_estimator.optimizer import placed
from det_estimator.sockets import Sockets
from det_testing._play import Cast, Request, play

pytestmark = pytest.mark.process


def test_sparse_mean_has_the_rows_of_all_ranks() -> None:
    """Their number stays, also where one rank has none, and with 16 bits in the order of ranks."""
    own = [[], [[0.1], [3.0], [5.0]]]

    def gradients(rank: int) -> list[Any]:
        some, places = (
            tf.constant(own[rank], shape=(3 * rank, 1)),
            tf.constant([4, 1, 4][: 3 * rank], tf.int64),
        )
        both = tf.IndexedSlices(
            tf.constant([[1.0 + rank]]), tf.constant([rank]), tf.constant([2, 1])
        )
        return [tf.constant(2.0 * rank), tf.IndexedSlices(some, places, tf.constant([6, 1])), both]

    for compress in (False, True):
        tenth = np.float32(np.float16(0.1) if compress else 0.1)
        for mean, some, both in reduced(gradients, compress=compress):
            assert mean == 1.0
            assert (some.values.tolist(), some.indices.tolist()) == (
                [[tenth / 2], [1.5], [2.5]],
                [4, 1, 4],
            )
            assert (both.values.tolist(), both.indices.tolist()) == ([[0.5], [1.0]], [0, 1])


def trained(step: Any, optimizer: Any, shares: list[Any]) -> list[Any]:
    """Return the weights after two epochs of batches."""
    with tf.Graph().as_default(), v1.Session() as session:
        texts = v1.placeholder(tf.int64, [None, 2])
        train = step(optimizer(), rows.loss_of(texts))
        session.run(v1.global_variables_initializer())
        for share in shares * 2:
            session.run(train, {texts: share})
        return session.run(v1.trainable_variables())  # type: ignore[no-any-return]


@pytest.mark.sample
@pytest.mark.parametrize("kind", rows.OPTIMIZERS)
def test_two_ranks_update_rows_as_one_process_does(kind: str, lab: Any) -> None:
    batches = np.split(rows.TEXTS, len(rows.TEXTS) // rows.BATCH)
    for step, make in rows.OPTIMIZERS[kind]:

        def do(rank: int, met: Any, step: Any = step, make: Any = make) -> list[Any]:
            run, backend = lab.info(), Sockets.join(met)
            return trained(
                step, lambda: placed(make(), run, backend), [batch[rank::2] for batch in batches]
            )

        alone = trained(step, make, batches)
        for mine in two(do):
            for weights, expected in zip(mine, alone, strict=True):
                np.testing.assert_allclose(
                    weights, expected, atol=1e-6, err_msg=type(make()).__name__
                )


def test_horovod_gathers_rows_after_dense_gradients(tmp_path: Path) -> None:
    pytest.importorskip("horovod.tensorflow")
    cast = Cast(
        trial=rows.Words, framework="estimator", hooks="det_estimator._hooks", backend="horovod"
    )
    length = 2 * len(rows.TEXTS) // rows.BATCH
    chief, _ = play(
        cast,
        [Request(name="words", length=length, hparams={"global_batch_size": rows.BATCH})],
        tmp_path,
    )
    found = tensors(tmp_path / "checkpoints" / chief["words"].checkpoints[length])
    alone = rows.alone(str(tmp_path / "alone"))
    alone.train(lambda: rows.records().batch(rows.BATCH).repeat(), steps=length)
    for name in ("table", "vector"):
        np.testing.assert_allclose(
            found[name], alone.get_variable_value(name), atol=1e-6, err_msg=name
        )
