"""The clusters that the campaigns of engines are made on."""

from __future__ import annotations

from tests.det_kubernetes.conftest import cluster
from tests.det_kubernetes.conftest import searches as pods
from tests.det_slurm.conftest import plugin_path, project, searches, slurm

__all__ = ["cluster", "plugin_path", "pods", "project", "searches", "slurm"]
