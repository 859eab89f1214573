"""The clusters that the campaigns of engines are made on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.det_kubernetes.conftest import cluster
from tests.det_kubernetes.conftest import searches as pods
from tests.det_ray.conftest import on_ray
from tests.det_slurm.conftest import plugin_path, project, searches, slurm
from tests.ray_cluster import RayCluster
from tests.ray_cluster import cluster as cluster_of_ray

__all__ = [
    "cluster",
    "on_ray",
    "plugin_path",
    "pods",
    "project",
    "ray_cluster",
    "searches",
    "slurm",
]


@pytest.fixture
def ray_cluster() -> Iterator[RayCluster]:
    """A head, and two hosts of two CPUs."""
    with cluster_of_ray(3, 2) as made:
        yield made
