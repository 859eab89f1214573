"""det-kubernetes does what every engine must do, on a cluster of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.kubernetes import (
    IMAGE,
    KubernetesCluster,
    kubernetes_cluster,
    why_no_kubernetes,
)

from det_driver.engines import AgentEngine, EngineContext
from det_kubernetes import KubernetesEngine, KubernetesSettings
from det_testing import EngineSuite

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(why_not), reason=why_not)]


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    with kubernetes_cluster(tmp_path_factory.mktemp("kubernetes") / "cluster", 2, cpus=4) as made:
        yield made


class TestKubernetes(EngineSuite):
    machines = 2

    @pytest.fixture(autouse=True)
    def on_the_cluster(self, kubernetes: KubernetesCluster) -> Iterator[None]:
        with kubernetes.entered():
            yield

    @pytest.fixture
    def make_engine(self) -> Callable[[Any], AgentEngine]:
        return KubernetesEngine

    @pytest.fixture
    def context(self, tmp_path: Path) -> EngineContext:
        settings = KubernetesSettings(image=IMAGE, python=sys.executable)
        name = f"det-suite-{tmp_path.name[-6:].replace('_', '-')}"
        return EngineContext(
            name=name,
            directory=tmp_path / "agents",
            host="127.0.0.1",
            lease=20.0,
            settings=settings,
        )
