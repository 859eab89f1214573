"""Agents that nobody can connect to.

Whoever can call a ferry beside them carries their words, or these go the straight way.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_queues import Queue

from det_driver.engines import Allocation, AllocationRequest, AllocationState, EngineContext
from det_node.agent import Ended, RunSpec, TcpRelay

pytestmark = pytest.mark.process

Wait = Callable[..., None]
NOWHERE = ("127.0.0.1", 1)


class Ferried(Queue):
    """A queue whose machines have ferries; with `cut_off` these cannot reach the driver."""

    carried, cut_off = True, False
    fault: Exception | None = None

    def __init__(self, on_event: Any) -> None:
        super().__init__(on_event)
        self.ferries: dict[str, TcpRelay] = {}
        self.called: list[str] = []

    def find(self) -> dict[str, Allocation]:
        for name in self.ferries:
            self.ferry(name, 0, lambda name=name: partial(self._call, self.ferries[name]))  # type: ignore[misc]
        return super().find()

    def place(self, name: str, node: int) -> None:
        self.held[name] = Allocation(name=name, state=AllocationState.RUNNING)
        command = self.commands[name]
        self.ferries[name] = TcpRelay(
            command.argv, command.start, node, {**os.environ, "DET_SLOTS_TOTAL": "1"}
        )

    def _call(self, ferry: TcpRelay, method: str, *arguments: Any) -> Any:
        self.called.append(method)
        if self.fault and method == "read":
            fault, self.fault = self.fault, None
            raise fault
        return getattr(ferry, method)(
            *((NOWHERE,) if method == "open" and self.cut_off else arguments)
        )


class CutOff(Ferried):
    cut_off = True


@pytest.fixture(params=[Ferried, CutOff])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ferried]:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    engine: Ferried = request.param(heard.put)
    engine.heard = heard  # type: ignore[attr-defined]
    engine.open(
        EngineContext(name="det-ferry", directory=tmp_path / "agents", host="127.0.0.1", lease=20.0)
    )
    yield engine
    engine.close()
    for ferry in engine.ferries.values():
        ferry.agent.terminate()
        ferry.agent.wait(30)


@pytest.fixture
def name(engine: Ferried, wait_until: Wait) -> str:
    """Return a claim whose agent has come."""
    engine.ask(
        request := AllocationRequest(name="det-ferry-1", slots=1),
        engine._command(AllocationRequest(name="det-ferry-1", slots=1)),
    )
    wait_until(lambda: request.name in engine.held, "the claim")
    engine.place(request.name, 0)
    wait_until(lambda: len(engine.nodes()) == 1, "the agent", 30)
    return request.name


def run(engine: Ferried, tmp_path: Path, number: int, script: str) -> RunSpec:
    """Start a run as soon as there is a node: an agent that is called again is away meanwhile."""
    deadline = time.monotonic() + 60
    while not (nodes := engine.nodes()):
        assert time.monotonic() < deadline, "no agent came"
        time.sleep(0.05)
    (tmp_path / "code").mkdir(exist_ok=True)
    spec = RunSpec(
        run_id=number,
        entrypoint=("/bin/sh", "-c", script),
        trial_class=False,
        code_dir=tmp_path / "code",
        log_dir=tmp_path / "logs" / str(number),
        variables={},
        node=nodes[0].name,
    )
    engine.start(spec)
    return spec


def ended(engine: Any) -> Ended:
    while not isinstance(said := engine.heard.get(timeout=30), Ended):
        continue
    return said


def test_run_executes_and_only_cut_off_nodes_use_the_relay(
    engine: Ferried, name: str, tmp_path: Path
) -> None:
    spec = run(engine, tmp_path, 1, "echo here; exit 3")
    assert ended(engine).status == 3
    assert (spec.log_dir / "rank-0.log").read_text() == "here\n"
    assert ("write" in engine.called) == engine.cut_off


def test_silent_remote_run_has_empty_local_logs(engine: Ferried, name: str, tmp_path: Path) -> None:
    spec = run(engine, tmp_path, 1, "exit 0")
    assert spec.log_dir.is_dir()
    assert ended(engine).status == 0
    (tmp_path / "logs" / "2").write_text("in the way")
    run(engine, tmp_path, 2, "exit 4")
    assert ended(engine).status == 4, "where they cannot be, it runs all the same"


def test_lost_connection_is_restored_without_loss_or_duplicates(
    engine: Ferried, name: str, tmp_path: Path
) -> None:
    run(engine, tmp_path, 1, "sleep 1; exit 4")
    ferry = engine.ferries[name]
    before = ferry.stream
    ferry.close(before)
    assert ended(engine).status == 4
    assert ferry.stream > before


def test_a_ferry_that_is_silent_for_a_while_is_called_again(
    engine: Ferried, name: str, tmp_path: Path, wait_until: Wait
) -> None:
    engine.fault = ConnectionError("it does not answer")
    opened = engine.called.count("open")
    engine.ferries[name].close(engine.ferries[name].stream)
    wait_until(lambda: engine.called.count("open") > opened, "the call", 60)
    run(engine, tmp_path, 1, "exit 5")
    assert ended(engine).status == 5


def test_how_an_agent_ended_is_known_with_its_last_words(
    engine: Ferried, name: str, wait_until: Wait
) -> None:
    engine.ferries[name].agent.send_signal(signal.SIGKILL)
    wait_until(lambda: engine.statuses == {(name, 0): -signal.SIGKILL}, "the status", 30)


def test_a_ferry_that_is_gone_leaves_nobody_waiting(
    engine: Ferried, name: str, wait_until: Wait
) -> None:
    engine.fault = LookupError("the actor is dead")
    engine.ferries[name].close(engine.ferries[name].stream)
    wait_until(lambda: engine.statuses == {(name, 0): None}, "the end", 30)
    assert Path(engine.log(name)).read_text() == "the actor is dead\n"


def test_agent_that_fails_to_start_reports_why_and_can_be_ended(tmp_path: Path) -> None:
    start = b'{"name": "x", "key": "00", "directory": "%s", "shared": false}' % bytes(tmp_path)
    ferry = TcpRelay(
        ("", "-c", "print('no such thing'); raise SystemExit(3)", "-"), start, 0, os.environ
    )
    opened = ferry.open(NOWHERE)
    assert (opened.status, opened.words, opened.stream) == (3, "no such thing\n", 0)
    assert ferry.known.is_set()
    ferry.end(False)  # harmless when it has ended
    assert ferry.read(0) == b""
    assert not ferry.write(0, b"x")


def test_the_next_driver_finds_an_agent_that_goes_on(
    engine: Ferried, name: str, tmp_path: Path, wait_until: Wait
) -> None:
    log = run(engine, tmp_path, 1, "echo begun; sleep 2; exit 6").log_dir / "rank-0.log"
    wait_until(log.exists, "the run", 30)
    engine.detach()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    following = type(engine)(heard.put)
    following.heard = heard  # type: ignore[attr-defined]
    following.held, following.ferries = engine.held, engine.ferries
    try:
        assert [spec.run_id for spec in following.open(engine.context)] == [1]
        assert ended(following).status == 6
    finally:
        following.close()
