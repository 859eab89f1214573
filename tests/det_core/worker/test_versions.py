"""A worker meets drivers of its own and of another protocol, over real sockets."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from det_core import DetError, wire
from det_core.config import from_json
from det_core.environ import WorkerEnv
from det_core.protocol import PROTOCOL, Answer, Hello, Said, Welcome, decode_said, encode, greeted, refusal
from det_core.worker import connect, work

HERE = version("det-core")
SENTENCE = (
    f"the worker has det-core {HERE} (protocol {PROTOCOL}), but its driver det-core 9.0 (protocol 99); "
    "install the same version of det-core for both"
)
CONFIG = {"name": "n", "entrypoint": "m:T", "searcher": {"name": "single", "metric": "e", "max_length": {"epochs": 1}}}


@pytest.fixture
def driver(tmp_path: Path):
    """Return a function that starts a driver, which says `welcome` to a worker, and the worker's environment."""
    servers: list[wire.Server] = []
    heard: queue.SimpleQueue[Hello] = queue.SimpleQueue()

    def start(welcome: Welcome) -> tuple[WorkerEnv, queue.SimpleQueue[Hello]]:
        def serve(connection: wire.Connection) -> None:
            heard.put(decode_said(connection.recv(timeout=10)))
            connection.send(encode(welcome))
            with suppress(wire.ConnectionLost):  # until the worker has left
                while isinstance(said := decode_said(connection.recv(timeout=10)), Said):
                    connection.send(encode(Answer(said.number - 1, value=-1.0)))  # late, of an earlier question
                    connection.send(encode(Answer(said.number, value=0.5)))

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


def test_a_worker_says_what_it_speaks_and_goes_on_with_a_driver_that_speaks_the_same(driver: Start) -> None:
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
    with wire.Server(bytes(32), on_connect=lambda connection: heard.put(greeted(connection, 10))) as server:
        for said in (3, 4):
            with wire.connect(server.address, wire.run_key(bytes(32), 3), run=3) as link:
                link.send(encode(Hello(said, 0, 7, PROTOCOL, HERE)))
                hello = heard.get(timeout=10)
                assert (hello and hello.run_id) == (3 if said == 3 else None)


def test_a_worker_refuses_a_driver_of_another_protocol_and_names_both(driver: Start) -> None:
    env, _ = driver(Welcome(99, "9.0"))
    with pytest.raises(DetError) as refused:
        connect(env)
    assert str(refused.value) == SENTENCE


def test_a_worker_process_ends_of_it_as_of_a_mistake(driver: Start, tmp_path: Path, capsys) -> None:
    env, _ = driver(Welcome(99, "9.0"))
    assert work(env, "model_def:Trial", tmp_path) == 2
    assert capsys.readouterr().err == f"det: {SENTENCE}\n"


def test_another_version_of_det_core_that_speaks_the_same_is_welcome() -> None:
    assert refusal(Hello(1, 0, 7, PROTOCOL, "1.0"), Welcome(PROTOCOL, "9.0")) is None
