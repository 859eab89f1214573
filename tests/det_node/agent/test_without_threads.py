"""An agent that may start no more threads says so, and its runs are started again later."""

from __future__ import annotations

import errno
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from det_node import wire
from det_node.agent import (
    AgentError,
    Attach,
    Ended,
    EndRuns,
    Relay,
    RunAck,
    RunSpec,
    StartRun,
    decode_agent_events,
    decode_agent_hello,
    encode_frame,
)
from det_node.agent._agent import Agent
from det_node.agent._frames import AgentStart
from det_node.agent._processes import Processes
from det_node.protocol import welcome

pytestmark = pytest.mark.process

SCRIPT = """
import os, pathlib, time
from det_node import wire
from det_node.protocol import decode_welcome, encode, hello
pathlib.Path("started").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.02)
host, port = os.environ["DET_DRIVER"].split(":")
key, run = bytes.fromhex(os.environ["DET_DRIVER_KEY"]), int(os.environ["DET_RUN_ID"])
with wire.connect((host, int(port)), key, run=run) as connection:
    connection.send(encode(hello(run, 0)))
    decode_welcome(connection.recv(timeout=30))
"""


@pytest.fixture
def stack_size() -> Iterator[Callable[[int], int]]:
    """Return what lets the system refuse each new thread, as `ulimit -u` does, with 1 << 46."""
    before = threading.stack_size()
    yield threading.stack_size
    threading.stack_size(before)


def test_run_of_an_unserved_worker_is_started_again_later(
    tmp_path: Path, wait_until, stack_size: Callable[[int], int]
) -> None:
    """Its trial has not failed, and loses no restart."""
    (tmp_path / "train.py").write_text(SCRIPT)
    key, events = wire.new_key(), queue.SimpleQueue[object]()
    connected = queue.SimpleQueue[wire.Connection]()

    def drive(connection: wire.Connection) -> None:
        decode_agent_hello(connection.recv())
        ours = welcome()
        connection.send(encode_frame(Attach(ours.protocol, ours.version, None, 60.0)))
        connected.put(connection)
        while True:
            for event in decode_agent_events(connection.recv()):
                events.put(event)

    def ended() -> Ended:
        while not isinstance(event := events.get(timeout=60), Ended):
            seen.append(event)
        return event

    def run(number: int) -> StartRun:
        (tmp_path / f"logs-{number}").mkdir()
        return StartRun(
            RunSpec(
                run_id=number,
                entrypoint="exec python3 train.py",
                trial_class=False,
                code_dir=tmp_path,
                log_dir=tmp_path / f"logs-{number}",
                variables={"DET_RUN_ID": str(number)},
            )
        )

    seen: list[object] = []
    with wire.Server(key, drive) as server:
        agent = Agent(
            AgentStart(
                name="a",
                key=key.hex(),
                directory=tmp_path / "agent",
                driver=server.address,
                shared=True,
            )
        )
        agent._relay._server._patience = 0.5
        serving = threading.Thread(target=agent.serve, daemon=True)
        serving.start()
        driver = connected.get(timeout=20)
        driver.send(encode_frame([run(1)]))
        wait_until((tmp_path / "started").exists, "that the script has started")
        stack_size(1 << 46)
        (tmp_path / "go").touch()
        first = ended()
        stack_size(0)
        driver.send(encode_frame([RunAck(1), run(2)]))
        second = ended()
        driver.send(encode_frame([RunAck(2), EndRuns()]))
        serving.join(20)
    assert first.run == 1
    assert "ulimit -u" in first.unstarted
    assert any(isinstance(each, AgentError) and "ulimit -u" in each.reason for each in seen)
    assert second.unstarted == ""
    assert second.status == 0, (tmp_path / "logs-2/rank-0.log").read_text()


def test_run_without_a_process_is_started_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is the one that the system gives where `ulimit -u` is reached."""

    def no_process(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", no_process)
    ends, relay = list[Ended](), Relay()
    processes = Processes(relay, ends.append, lambda: 0, print, print)
    processes.start(
        RunSpec(
            run_id=7,
            entrypoint="true",
            trial_class=False,
            code_dir=tmp_path,
            log_dir=tmp_path / "logs",
            variables={},
        )
    )
    relay.close()
    (ended,) = ends
    assert ended.unstarted == (
        f"its user may have no more processes on {os.uname().nodename} (ulimit -u)"
    )
