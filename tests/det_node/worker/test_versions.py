"""A worker meets drivers of its own and of another protocol, over real sockets."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from det_core import DetError
from det_core.config import from_json
from det_core.train.environ import WorkerEnv
from det_node import wire
from det_node.protocol import (
    PROTOCOL,
    Envelope,
    Hello,
    Reply,
    Welcome,
    decode_envelope,
    encode,
    greeted,
    refusal,
)
from det_node.remote import connect
from det_node.worker import work

pytestmark = pytest.mark.process

HERE = version("det-training-core")
SENTENCE = (
    f"the worker has det-core {HERE} (protocol {PROTOCOL}), but its driver det-core 9.0 (protocol"
    " 99); install the same version of det for both"
)
CONFIG = {
    "name": "n",
    "entrypoint": "m:T",
    "searcher": {"name": "single", "metric": "e", "max_length": {"epochs": 1}},
}


@pytest.fixture
def driver(tmp_path: Path):
    """Return a function that starts a driver, and the worker's environment.

    The driver sends `welcome` to a worker.
    """
    servers: list[wire.Server] = []
    heard: queue.SimpleQueue[Hello] = queue.SimpleQueue()

    def start(welcome: Welcome) -> tuple[WorkerEnv, queue.SimpleQueue[Hello]]:
        def serve(connection: wire.Connection) -> None:
            heard.put(decode_envelope(connection.recv(timeout=10)))
            connection.send(encode(welcome))
            with suppress(wire.ConnectionLost):  # until the worker has left
                while isinstance(said := decode_envelope(connection.recv(timeout=10)), Envelope):
                    connection.send(
                        encode(Reply(said.number - 1, value=-1.0))
                    )  # late, of an earlier question
                    connection.send(encode(Reply(said.number, value=0.5)))

        servers.append(wire.Server(bytes(32), on_connect=serve))
        env = WorkerEnv(
            experiment_id=1, trial_id=2, run_id=3, run_number=1, seed=0, hparams={}, config=from_json(json.dumps(CONFIG)),
            slot_ids=(0,), driver=servers[-1].address, key=wire.run_key(bytes(32), 3),
            checkpoint_root=tmp_path, tensorboard_dir=tmp_path, spool=tmp_path,
        )  # fmt: skip
        return env, heard

    yield start
    for server in servers:
        server.close()


Start = Callable[[Welcome], tuple[WorkerEnv, "queue.SimpleQueue[Hello]"]]


def test_worker_states_its_protocol_and_accepts_an_equal_one(driver: Start) -> None:
    env, heard = driver(Welcome(PROTOCOL, "9.0"))
    host = connect(env)
    try:
        assert host.best_validation() == 0.5
    finally:
        host.close()
    hello = heard.get(timeout=5)
    assert (hello.run_id, hello.rank, hello.protocol, hello.version) == (3, 0, PROTOCOL, HERE)


def test_a_worker_is_heard_of_the_run_alone_whose_key_it_has() -> None:
    heard: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
    with wire.Server(
        bytes(32), on_connect=lambda connection: heard.put(greeted(connection, 10))
    ) as server:
        for said in (3, 4):
            with wire.connect(server.address, wire.run_key(bytes(32), 3), run=3) as link:
                link.send(encode(Hello(said, 0, 7, PROTOCOL, HERE)))
                hello = heard.get(timeout=10)
                assert (hello and hello.run_id) == (3 if said == 3 else None)


def test_worker_refuses_another_protocol_and_names_both(driver: Start) -> None:
    env, _ = driver(Welcome(99, "9.0"))
    with pytest.raises(DetError) as refused:
        connect(env)
    assert str(refused.value) == SENTENCE


def test_a_worker_process_ends_of_it_as_of_a_mistake(driver: Start, tmp_path: Path, capsys) -> None:
    env, _ = driver(Welcome(99, "9.0"))
    assert work(env, "model_def:Trial", tmp_path) == 2
    assert capsys.readouterr().err == f"det: {SENTENCE}\n"


def test_other_version_with_the_same_protocol_is_accepted() -> None:
    assert refusal(Hello(1, 0, 7, PROTOCOL, "1.0"), Welcome(PROTOCOL, "9.0")) is None
