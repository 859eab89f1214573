"""Searches on a cluster whose pods see neither the home, nor the project, nor the user's home.

Only the checkpoint storage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project, plugin_path, project
from tests.det_slurm.conftest import Searches as SlurmSearches
from tests.kubernetes_cluster import IMAGE, Kubernetes, kubernetes

__all__ = ["Searches", "cluster", "plugin_path", "project", "searches"]


class Searches(SlurmSearches):
    """Searches with the driver on a host beside the nodes; `shared` is what pods see."""

    def engine(self, pause: float = 0.0, **settings: Any) -> dict[str, Any]:
        variables = {
            "DET_HOME": self.shared,
            "PAUSE": pause,
            "PYTHONPATH": self.project.env["PYTHONPATH"],
        }
        env = [{"name": name, "value": str(value)} for name, value in variables.items()]
        pod = {"spec": {"containers": [{"name": "determined-container", "env": env}]}}
        return {
            "name": "kubernetes",
            "image": IMAGE,
            "python": sys.executable,
            "pod_spec": pod,
            **settings,
        }

    def no_job_is_left(self) -> None:
        """Wait until no pod waits or runs."""
        self.wait_until(
            lambda: self.cluster.pods("Pending", "Running") == {}, "the end of all pods", 15
        )


@pytest.fixture
def cluster(tmp_path: Path, project: Project) -> Iterator[Kubernetes]:
    """Three nodes of one CPU, on which the directories of a driver are empty."""
    hidden = [tmp_path / "home", tmp_path / "project", tmp_path / "user"]
    for each in hidden:
        each.mkdir(exist_ok=True)
    with kubernetes(tmp_path / "cluster", 3, hidden) as made:
        yield made


@pytest.fixture
def searches(
    project: Project, cluster: Kubernetes, tmp_path: Path, wait_until: Callable[..., None]
) -> Searches:
    return Searches(project, cluster, tmp_path, wait_until)
