"""The engines that det brings do what every engine must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core.config import Ssh
from det_driver.engines import AgentEngine, Site
from det_driver.engines.local import LocalEngine
from det_driver.engines.ssh import SshEngine
from det_testing import EngineSuite


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
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
        monkeypatch.setenv("HOME", str(tmp_path / "user"))
        settings = Ssh(hosts=("127.0.0.1", "127.0.0.2"), agent="env HOST={host}")
        return Site(name="det-suite", directory=tmp_path / "agents", host="127.0.0.1", lease=20.0, settings=settings)
