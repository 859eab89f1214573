"""A Kubernetes cluster for each test that takes `on_kubernetes`."""

from __future__ import annotations

from tests.det_driver.driver.conftest import plugin_path, project
from tests.support.clusters.searches import hidden, kubernetes, on_kubernetes

__all__ = ["hidden", "kubernetes", "on_kubernetes", "plugin_path", "project"]
