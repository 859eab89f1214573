"""The store of experiments: SQLite in the user's home for det, with all of its SQL in this package."""

from __future__ import annotations

from det_driver.store._locks import boot_id, network_file_system
from det_driver.store._moving import export_experiment, import_experiment
from det_driver.store._records import (
    CheckpointRow,
    CheckpointState,
    ExperimentRow,
    ExperimentState,
    ExperimentSummary,
    Lease,
    Metric,
    Run,
    TrialRow,
    TrialState,
)
from det_driver.store._store import Store

__all__ = [
    "CheckpointRow",
    "CheckpointState",
    "ExperimentRow",
    "ExperimentState",
    "ExperimentSummary",
    "Lease",
    "Metric",
    "Run",
    "Store",
    "TrialRow",
    "TrialState",
    "boot_id",
    "export_experiment",
    "import_experiment",
    "network_file_system",
]
