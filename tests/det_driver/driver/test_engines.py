"""The engines that det brings do what every engine must do."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core.config import Ssh
from det_driver.engines import AgentEngine, EngineContext
from det_driver.engines.local import LocalEngine
from det_driver.engines.ssh import SshEngine
from det_node.process import process_identity
from det_testing import EngineSuite

pytestmark = pytest.mark.process


class TestLocal(EngineSuite):
    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        return LocalEngine


class TestSsh(EngineSuite):
    """Hosts that are this machine, reached by a command that runs what follows it."""

    machines = 2

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        return SshEngine

    @pytest.fixture
    def context(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineContext:
        monkeypatch.setenv("HOME", str(tmp_path / "user"))
        settings = Ssh(hosts=("127.0.0.1", "127.0.0.2"), agent="env HOST={host}")
        return EngineContext(
            name="det-suite",
            directory=tmp_path / "agents",
            host="127.0.0.1",
            lease=20.0,
            settings=settings,
        )

    @pytest.mark.thorough
    def test_an_agent_that_does_not_come_is_ended_and_replaced(
        self, drive: Callable[[], Any], context: EngineContext, tmp_path: Path
    ) -> None:
        """It runs, but does not connect until its lease has ended."""
        name, agents = "det-suite-earlier@127.0.0.1", tmp_path / "user/.cache/det/agents"
        for directory in (agents, context.directory):
            directory.mkdir(parents=True)
        context.directory.joinpath("claims.json").write_text(json.dumps([name]))
        with subprocess.Popen(["sleep", "600"]) as earlier:
            note = {"pid": earlier.pid, "born": process_identity(earlier.pid), "name": name}
            agents.joinpath(f"{name}-0.json").write_text(json.dumps(note))
            driven = drive()
            assert earlier.wait(20) == -signal.SIGTERM
            assert len(driven.nodes(2)) == 2
