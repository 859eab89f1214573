"""Workers that `TF_CONFIG` describes, and what Keras 3 needs of their strategy."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap

import pytest

from det_core import DetError, DistributedContext, Ranks
from det_node.machine import reserved

pytest.importorskip("tensorflow")

import tensorflow as tf

from det_keras.backends.tf_config import ranks_of, workers_in
from det_keras.versions import KERAS_3

SECONDS = 280
"""For two processes to import TensorFlow and train, on a machine that does much else."""

FIT = """
    import numpy as np
    import tensorflow as tf
    from det_core import DistributedContext
    from det_keras.versions import keras

    distributed, strategy = DistributedContext.from_tf_config()
    print("ranks", distributed.allgather(distributed.rank), distributed.local_size, distributed.cross_size)
    print("said", distributed.broadcast(("by", distributed.rank)), distributed.agree(distributed.rank == 1))
    x = np.random.default_rng(0).normal(size=(36, 4)).astype("float32")
    y = np.random.default_rng(1).integers(0, 3, 36)
    data = {"x": x, "y": y, "batch_size": 8, "shuffle": False, "verbose": 0, "validation_data": (x, y)}

    def made():
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    model = made()
    history = model.fit(**data, epochs=2).history
    print("losses", " ".join(f"{value:.5f}" for name in sorted(history) for value in history[name]))
    print("weights", " ".join(f"{value:.5f}" for value in model.get_weights()[0].flat))

    kind = type(strategy)
    taken_out = {"scalars": ("_is_scalar", lambda self, value: False), "all": ("reduce", kind.__mro__[1].reduce)}
    for what, (name, instead) in taken_out.items() if distributed.size > 1 else ():
        setattr(kind, name, instead)
        try:
            made().fit(**data)
            print(f"without_{what} trained")
        except Exception as error:
            print(f"without_{what} {type(error).__name__}")
"""


def said(outputs: str) -> dict[str, str]:
    return dict(line.partition(" ")[::2] for line in outputs.splitlines())


@pytest.fixture(scope="module")
def both() -> list[dict[str, str]]:
    """Run the script on two workers; return what each printed. Both are gone when this returns."""
    processes: list[subprocess.Popen[str]] = []
    with reserved(2, None) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        try:
            for index in range(2):
                config = json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                )
                env = {
                    **os.environ,
                    "TF_CONFIG": config,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "OMP_NUM_THREADS": "1",
                }
                command, pipe = [sys.executable, "-c", textwrap.dedent(FIT)], subprocess.PIPE
                processes.append(
                    subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
                )
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [said(out) for out, _ in outputs]


def alone(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Run the script here, as the only worker."""
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}',
    )
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(textwrap.dedent(FIT), {})
    return said(out.getvalue())


@pytest.mark.process
@pytest.mark.timeout(400)
def test_two_workers_train_as_one_does_and_know_of_each_other(both, monkeypatch):
    one, (first, second) = alone(monkeypatch), both
    assert first["weights"] == second["weights"] == one["weights"]
    assert first["losses"] == second["losses"] == one["losses"]
    assert first["ranks"] == second["ranks"] == "[0, 1] 2 1"
    assert first["said"] == second["said"] == "('by', 0) True"
    assert one["ranks"] == "[0] 1 1"


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", ["scalars", "all"])
def test_keras_3_needs_both_additions_and_keras_2_neither(both, what):
    """Where this fails, Keras has been mended: take what it needs no longer out of `Workers`."""
    needed = [worker[f"without_{what}"] != "trained" for worker in both]
    assert needed == [KERAS_3, KERAS_3], both


def test_without_workers_the_default_strategy_has_one_process(monkeypatch):
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
        (
            '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}',
            (["a:1", "b:2"], 1),
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": "0"}}', (["a:1"], 0)),
    ],
)
def test_workers_are_read(config, expected):
    assert workers_in(config) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "{",
            (
                "TF_CONFIG is '{', which TensorFlow could not read; start the script by"
                " det_node.launch.tensorflow"
            ),
        ),
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
    assert ranks_of(workers, 4) == Ranks(
        rank=4, size=6, local_rank=1, local_size=2, cross_rank=1, cross_size=3
    )
    assert ranks_of(workers, 3) == Ranks(
        rank=3, size=6, local_rank=0, local_size=1, cross_rank=2, cross_size=3
    )
    assert ranks_of(["a:1"], 0) == Ranks()
