"""det-ray does what every engine must do, on a cluster of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.ray import RayCluster, why_no_ray

from det_driver.engines import AgentEngine, EngineContext
from det_ray import RayEngine, RaySettings
from det_testing import EngineSuite

why_not = why_no_ray()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(why_not), reason=why_not)]


@pytest.fixture(scope="module", autouse=True)
def on_the_head(shared_ray: RayCluster) -> Iterator[None]:
    # Ray reads the variables when it is imported.
    with shared_ray.entered():
        yield
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


class TestRay(EngineSuite):
    machines = 2

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        return RayEngine

    @pytest.fixture
    def context(self, tmp_path: Path) -> EngineContext:
        settings = RaySettings(directory=str(tmp_path / "on-the-machine"), resources={"head": 1})
        name = f"det-suite-{tmp_path.name}"
        return EngineContext(
            name=name,
            directory=tmp_path / "agents",
            host="127.0.0.1",
            lease=20.0,
            settings=settings,
        )
