"""A Ray cluster that the tests share."""

from __future__ import annotations

from tests.det_driver.driver.conftest import plugin_path, project
from tests.support.clusters.searches import hidden, on_ray, ray, shared_ray

__all__ = ["hidden", "on_ray", "plugin_path", "project", "ray", "shared_ray"]
