"""What another machine must be able to do is tried before its first trial.

The message says where it cannot.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from det_core.storage import LocalStorage
from det_driver.engines import Engine, NodeJoined, NodeLost, OnEvent, Probe, probes
from det_driver.engines.probes import PROBES, Probes, Retries
from det_node.agent import Ended, RunSpec
from det_node.agent.probe import leave


class Noting(Engine):
    """An engine that only notes what it is told."""

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self.started: list[RunSpec] = []
        self.ended: list[int] = []

    def start(self, spec: RunSpec) -> None:
        self.started.append(spec)

    def acknowledge_end(self, run: int) -> None:
        self.ended.append(run)

    def signal(self, run: int, number: Signals) -> None:
        """Nothing runs."""


class Machine:
    """A machine whose run that tries it ends as a test says."""

    def __init__(self, tmp_path: Path) -> None:
        self.storage = LocalStorage(tmp_path / "storage")
        self.heard: list[Any] = []
        logs = tmp_path / "logs"
        spec = RunSpec(
            run_id=0,
            entrypoint="",
            trial_class=False,
            code_dir=tmp_path,
            log_dir=logs,
            variables={},
        )
        engine = Noting(self.heard.append)
        self.started, self.acknowledged = engine.started, engine.ended
        self.probes = Probes(engine, Probe(spec, lambda: self.storage), logs)

    def ends(self, log: str, status: int = 0, *, answers: bool = False) -> None:
        spec = self.started[-1]
        spec.log_dir.mkdir(parents=True)
        (spec.log_dir / "rank-0.log").write_text(log)
        if answers:
            leave(self.storage, f"{spec.entrypoint[-1]}-back")
        self.probes.handle(Ended(spec.run_id, status))
        assert self.acknowledged == [spec.run_id]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def said(**more: Any) -> str:
    return json.dumps({"machine": "far", "wrong": "", "versions": {}} | more) + "\n"


def test_one_that_passes_is_there_for_runs(machine: Machine) -> None:
    machine.probes.handle(NodeJoined("a/0"))
    assert machine.probes.fit == {}
    machine.ends("a hook says something\n" + said(versions={"python": "3.11"}), answers=True)
    assert machine.probes.fit == {"a/0": {"python": "3.11"}}
    assert machine.heard == [NodeJoined("a/0"), NodeJoined("a/0")]
    assert list((machine.storage.root).glob("probe-*")) == []


def test_what_differs_there_is_said(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.probes.handle(NodeJoined("a/0"))
    machine.ends(said(versions={"det-core": "9.9", "of-theirs": "1"}), answers=True)
    assert "far has det-core 9.9 (here 0.1.0)" in capsys.readouterr().err


def test_a_storage_of_its_own_is_none_of_the_experiments(machine: Machine) -> None:
    machine.probes.handle(NodeJoined("a/0"))
    machine.ends(said())
    assert machine.probes.refused.startswith("far writes to another storage than ")
    assert machine.probes.fit == {}


def test_one_that_cannot_be_tried_says_why(machine: Machine) -> None:
    machine.probes.handle(NodeJoined("a/0"))
    machine.ends("loading\nno such module\n", 3)
    assert "a/0 cannot be tried: no such module (" in machine.probes.refused


@pytest.mark.parametrize(("status", "is_leaving"), [(143, False), (-9, False), (1, True)])
def test_a_check_that_is_ended_from_outside_says_nothing(
    machine: Machine, status: int, is_leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is taken away, or it is repeated there."""
    monkeypatch.setattr(probes, "_FIRST_PAUSE_SECONDS", 0.01)
    leaving = ["a/0"] if is_leaving else []
    monkeypatch.setattr(Noting, "is_leaving", lambda self, node: node in leaving)
    machine.probes.handle(NodeJoined("a/0"))
    machine.ends("Traceback\nKeyboardInterrupt\n", status)
    assert machine.probes.refused == ""
    assert machine.probes.fit == {}
    deadline = time.monotonic() + 10
    while len(machine.started) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    machine.acknowledged.clear()
    leaving.clear()
    machine.ends(said(), answers=True)
    assert machine.probes.fit == {"a/0": {}}


def test_a_storage_that_cannot_be_used_here_is_named(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("a file\n")
    machine.probes.handle(NodeJoined("a/0"))
    assert machine.probes.refused.startswith("the checkpoint storage cannot be used here: ")


def test_a_repetition_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the node would be waited for, for ever."""
    monkeypatch.setattr(probes, "_FIRST_PAUSE_SECONDS", 0.01)
    begun, tried = threading.Event(), list[str]()

    def begin(node: str) -> None:
        tried.append(node)
        if len(tried) == 1:
            raise LookupError("no such key")
        begun.set()

    Retries("be tried", begin).again("a/0", "no more processes")
    assert begun.wait(10)
    assert tried == ["a/0", "a/0"]
    assert "a/0 cannot be tried yet: LookupError: no such key" in capsys.readouterr().err


def test_one_that_has_runs_was_tried_before_they_began(machine: Machine) -> None:
    machine.probes.handle(NodeJoined("a/0", (3, PROBES)))
    assert (machine.heard, machine.started) == ([NodeJoined("a/0", (3,))], [])
    assert "a/0" in machine.probes.fit
    machine.probes.handle(Ended(PROBES, 0))  # of a driver before
    machine.probes.handle(NodeLost("a/0"))
    assert machine.heard[1:] == [NodeLost("a/0")]
    assert machine.probes.fit == {}
