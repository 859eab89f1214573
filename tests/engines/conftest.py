"""The clusters of the campaigns of engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.det_driver.driver.conftest import plugin_path, project
from tests.support.clusters.ray import RayCluster, ray_cluster
from tests.support.clusters.searches import (
    clustered,
    hidden,
    kubernetes,
    on_kubernetes,
    on_ray,
    on_slurm,
    slurm,
)

__all__ = [
    "clustered",
    "hidden",
    "kubernetes",
    "on_kubernetes",
    "on_ray",
    "on_slurm",
    "plugin_path",
    "project",
    "ray",
    "slurm",
]


@pytest.fixture
def ray() -> Iterator[RayCluster]:
    """A head, and three hosts of two CPUs. They do not outlive what is done to them."""
    with ray_cluster(4, 2) as made:
        yield made
