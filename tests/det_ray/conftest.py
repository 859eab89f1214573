"""Searches on a Ray cluster whose machines see only the storage.

They see neither the home, nor the project, nor the user's home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.conftest import Project, plugin_path, project
from tests.det_slurm.conftest import Searches
from tests.ray_cluster import RayCluster, cluster

__all__ = ["RaySearches", "on_ray", "plugin_path", "project", "ray_cluster", "shared_cluster"]

NONE_LEFT = """
import time
deadline = time.monotonic() + 30
while any(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values()) or ray.util.list_named_actors():
    assert time.monotonic() < deadline, (ray.util.placement_group_table(), ray.util.list_named_actors())
    time.sleep(0.2)
"""


class RaySearches(Searches):
    """Searches with the driver on the head; `shared` is what the other hosts see."""

    def engine(self, pause: float = 0.0, **settings: Any) -> dict[str, Any]:
        """Return what a configuration says of the engine: hosts other than the head."""
        environ = {
            "DET_HOME": self.shared,
            "PAUSE": pause,
            "PYTHONPATH": self.project.env["PYTHONPATH"],
            "HOME": self.user,
        }
        variables = {name: str(value) for name, value in environ.items()}
        return {
            "name": "ray",
            "resources": {"other": 1},
            "runtime_env": {"env_vars": variables},
            **settings,
        }

    def no_job_is_left(self) -> None:
        """Wait until Ray has its machines back."""
        self.cluster.ask(NONE_LEFT)

    def machines(self) -> list[str]:
        """Return the hosts that agents are on."""
        said = self.cluster.ask(
            "hosts = {node['NodeID']: node['NodeManagerAddress'] for node in ray.nodes()}\ngroups ="
            " ray.util.placement_group_table().values()\nprint(*(hosts[n] for g in groups if"
            " g['state'] == 'CREATED' for n in g['bundles_to_node_id'].values()))"
        )
        return said.split()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RayCluster]:
    """A head with four CPUs, and a host with two.

    For what does not harm it, as it takes a while to start.
    """
    with cluster(2, 4) as made:
        yield made


@pytest.fixture
def ray_cluster(shared_cluster: RayCluster) -> RayCluster:
    return shared_cluster


@pytest.fixture
def on_ray(
    project: Project, ray_cluster: RayCluster, tmp_path: Path, wait_until: Callable[..., None]
) -> RaySearches:
    """Searches on a cluster where only the head has anything in the driver's directories."""
    hidden = [tmp_path / "home", tmp_path / "project", tmp_path / "user"]
    for each in hidden:
        each.mkdir(exist_ok=True)
    ray_cluster.hide(hidden)
    return RaySearches(project, ray_cluster, tmp_path, wait_until)
