"""det-slurm does what every engine must do, on a cluster of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.slurm import SlurmCluster, slurm_cluster, why_no_slurm

from det_driver.engines import AgentEngine, EngineContext
from det_slurm import SlurmEngine, SlurmSettings
from det_testing import EngineSuite

why_not = why_no_slurm()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(why_not), reason=why_not)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm") / "cluster", 2) as made:
        yield made


class TestSlurm(EngineSuite):
    machines = 2

    @pytest.fixture(autouse=True)
    def on_the_cluster(
        self, slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        monkeypatch.setenv("HOME", str(tmp_path / "user"))
        with slurm.entered():
            yield

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        return SlurmEngine

    @pytest.fixture
    def context(self, tmp_path: Path) -> EngineContext:
        settings = SlurmSettings(partition="low")
        name = f"det-suite-{tmp_path.name}"
        return EngineContext(
            name=name,
            directory=tmp_path / "agents",
            host="127.0.0.1",
            lease=20.0,
            settings=settings,
        )
