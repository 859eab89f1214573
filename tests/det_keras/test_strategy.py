"""Workers that `TF_CONFIG` describes, and what Keras 3 needs of their strategy."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from det_core import DetError, DistributedContext, Ranks

pytest.importorskip("tensorflow")

import tensorflow as tf

from det_keras.backends.tf_config import ranks_of, workers_in
from det_keras.versions import KERAS_3

SECONDS = 110

FIT = """
    import sys
    import numpy as np
    import tensorflow as tf
    from det_core import DistributedContext
    from det_keras.strategy import Workers
    from det_keras.versions import keras

    class NestsOnly(Workers):
        def _is_scalar(self, value):
            return False

    which = sys.argv[1]
    if which == "det":
        distributed, strategy = DistributedContext.from_tf_config()
        print("ranks", distributed.allgather(distributed.rank), distributed.local_size, distributed.cross_size)
        print("said", distributed.broadcast(("by", distributed.rank)), distributed.agree(distributed.rank == 1))
    else:
        strategy = {"tensorflow": tf.distribute.MultiWorkerMirroredStrategy, "nests": NestsOnly}[which]()
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(36, 4)).astype("float32")
    y = np.random.default_rng(1).integers(0, 3, 36)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = {"x": x, "y": y, "batch_size": 8, "shuffle": False}
    history = model.fit(**data, epochs=2, verbose=0, validation_data=(x, y)).history
    print("losses", " ".join(f"{value:.5f}" for name in sorted(history) for value in history[name]))
    print("weights", " ".join(f"{value:.5f}" for value in model.get_weights()[0].flat))
"""


def fit(which: str, workers: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run the script on so many workers; every one is gone when this returns."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(workers)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    processes = []
    for index in range(workers):
        config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
        env = {**os.environ, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(FIT), which],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ended = [(process, *process.communicate(timeout=SECONDS)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [subprocess.CompletedProcess([], process.returncode, out, err) for process, out, err in ended]


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_two_workers_train_as_one_does_and_know_of_each_other():
    [alone] = fit("det", workers=1)
    first, second = (lines(done) for done in fit("det"))
    assert first["weights"] == second["weights"] == lines(alone)["weights"]
    assert first["losses"] == second["losses"] == lines(alone)["losses"]
    assert first["ranks"] == second["ranks"] == "[0, 1] 2 1"
    assert first["said"] == second["said"] == "('by', 0) True"
    assert lines(alone)["ranks"] == "[0] 1 1"


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 trains under TensorFlow's own strategy")
@pytest.mark.parametrize("which", ["tensorflow", "nests"])
def test_keras_3_still_needs_both_of_what_workers_adds(which):
    """Where this fails, Keras has been mended: take what it needs no longer out of `Workers`."""
    assert [done.returncode for done in fit(which)] == [1, 1]


@pytest.mark.skipif(KERAS_3, reason="Keras 3 does not")
def test_keras_2_trains_under_tensorflows_own_strategy():
    assert [done.returncode for done in fit("tensorflow")] == [0, 0]


def test_without_workers_there_is_one_process_with_tensorflows_default(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    distributed, strategy = DistributedContext.from_tf_config()
    assert (distributed.rank, distributed.size) == (0, 1)
    assert strategy is tf.distribute.get_strategy()
    assert distributed.allgather("x") == ["x"]
    distributed.close()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", ([], 0)),
        ("{}", ([], 0)),
        ('{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}', (["a:1", "b:2"], 1)),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": "0"}}', (["a:1"], 0)),
    ],
)
def test_workers_are_read(config, expected):
    assert workers_in(config) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "TF_CONFIG is '{', which TensorFlow could not read; start the script by det_core.launch.tensorflow"),
        ("[]", "could not read"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}',
            "a task of the type 'chief'; every task must be a worker",
        ),
        (
            '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker"}}',
            "names a task of the type 'ps'",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"index": 1}}',
            "lists 1 workers and says that this one is 1; number them",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_named(config, message):
    with pytest.raises(DetError, match=message.replace("{", r"\{")):
        workers_in(config)


def test_workers_at_one_address_are_on_one_host():
    workers = ["a:1", "b:1", "a:2", "[::1]:5", "b:2", "a:3"]
    assert ranks_of(workers, 4) == Ranks(rank=4, size=6, local_rank=1, local_size=2, cross_rank=1, cross_size=3)
    assert ranks_of(workers, 3) == Ranks(rank=3, size=6, local_rank=0, local_size=1, cross_rank=2, cross_size=3)
    assert ranks_of(["a:1"], 0) == Ranks()
