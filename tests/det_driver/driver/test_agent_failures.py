"""What goes wrong in an agent or a driver's thread reaches the terminal, and nothing hangs."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from tests.support.distributions import lay_out, on_path

from det_node import wire
from det_node.agent import (
    AgentError,
    Attach,
    EndRuns,
    SignalRun,
    decode_agent_events,
    decode_agent_hello,
    encode_frame,
)
from det_node.agent._agent import Agent
from det_node.agent._frames import AgentStart
from det_node.protocol import welcome

CONFIG = """
name: script
entrypoint: "true"
searcher: {name: single, metric: loss, max_length: 1}
"""
SSH = (
    CONFIG
    + 'engine: {name: ssh, hosts: [127.0.0.1], agent: "prlimit --fsize=8192 env HOST={host}"}\n'
)
ENGINE = """
from det_core import EngineRecord, hookimpl

@hookimpl
def det_engines():
    yield EngineRecord(name="brittle", load=load)

def load():
    from det_driver.engines.local import LocalEngine

    class Brittle(LocalEngine):
        def _is_lost(self, agent):
            raise RuntimeError("a mistake in the engine")

    return Brittle
"""


@pytest.mark.process
def test_a_node_that_cannot_keep_the_code_is_named_with_the_path(det, tmp_path: Path) -> None:
    """No file of the agent may grow beyond 8 KiB: its note fits, and the code does not."""
    (det.cwd / "ssh.yaml").write_text(SSH)
    (det.cwd / "model_def.py").write_text("#" * 100_000)
    done = det("run", "ssh.yaml", status=None, env={"HOME": str(tmp_path / "user")})
    assert done.returncode != 0
    where = re.escape(str(tmp_path / "user/.cache/det/agents"))
    assert re.search(rf"File too large: {where}/\S+ on {os.uname().nodename}", done.stderr), (
        done.stderr
    )


@pytest.mark.process
def test_a_directory_that_an_agent_cannot_have_is_named(det, tmp_path: Path) -> None:
    (det.cwd / "ssh.yaml").write_text(SSH.replace("prlimit --fsize=8192 ", ""))
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / ".cache").write_text("no directory")
    done = det("run", "ssh.yaml", status=None, env={"HOME": str(tmp_path / "user")})
    assert done.returncode != 0
    assert f"the agent on {os.uname().nodename} cannot begin" in done.stderr
    assert str(tmp_path / "user/.cache") in done.stderr


@pytest.mark.process
def test_a_thread_of_the_driver_that_fails_ends_it_with_its_name(det, tmp_path: Path) -> None:
    lay_out(
        tmp_path / "site",
        "det-brittle",
        entry_points={"brittle": "det_brittle"},
        modules={"det_brittle": ENGINE},
    )
    (det.cwd / "run.yaml").write_text(CONFIG.replace('"true"', "sleep 60"))
    done = det("run", "run.yaml", "--engine", "brittle", status=2, env=on_path(tmp_path / "site"))
    assert (
        "the driver's thread det-beats has failed: RuntimeError: a mistake in the engine"
        in done.stderr
    )
    assert det("list").stdout.lower().count("error") == 1


@pytest.mark.process
def test_an_agent_says_what_an_order_broke_and_goes_on(tmp_path: Path, wait_until) -> None:
    """It costs a connection.

    The driver hears of it on the next one, and its orders are heeded there.
    """
    key, reasons, known = wire.new_key(), list[str](), threading.Event()
    connections: list[wire.Connection] = []

    def drive(connection: wire.Connection) -> None:
        decode_agent_hello(connection.recv())
        ours = welcome()
        connection.send(encode_frame(Attach(ours.protocol, ours.version, None, 60.0)))
        connections.append(connection)
        if len(connections) == 1:
            connection.send(encode_frame([SignalRun(run=1, number=1000)]))
        while True:
            for told in decode_agent_events(connection.recv()):
                if isinstance(told, AgentError):
                    reasons.append(told.reason)
                    known.set()
                    connection.send(encode_frame([EndRuns()]))

    with wire.Server(key, drive) as server:
        agent = Agent(
            AgentStart(name="a", key=key.hex(), directory=tmp_path, driver=server.address)
        )
        threading.Thread(target=agent._connect_to_driver, daemon=True).start()
        assert known.wait(20)
        wait_until(lambda: agent._ending, "that the next order is heeded")
    (reason,) = reasons
    assert reason.startswith("ValueError: 1000 is not a valid Signals (")
