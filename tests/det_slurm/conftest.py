"""A Slurm cluster for each test that takes `on_slurm`."""

from __future__ import annotations

from tests.det_driver.driver.conftest import plugin_path, project
from tests.support.clusters.searches import hidden, on_slurm, slurm

__all__ = ["hidden", "on_slurm", "plugin_path", "project", "slurm"]
