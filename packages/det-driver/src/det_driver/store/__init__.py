"""The store of experiments: SQLite in the user's home for det, with all of its SQL in this package."""

from __future__ import annotations

from det_driver.store._experiments import ExperimentChanges
from det_driver.store._process import boot_id
from det_driver.store._records import (
    Checkpoint,
    CheckpointState,
    Command,
    Event,
    Experiment,
    ExperimentState,
    ExperimentSummary,
    Lease,
    Metric,
    Run,
    Trial,
    TrialState,
)
from det_driver.store._store import Store
from det_driver.store._trials import TrialChanges

__all__ = [
    "Checkpoint",
    "CheckpointState",
    "Command",
    "Event",
    "Experiment",
    "ExperimentChanges",
    "ExperimentState",
    "ExperimentSummary",
    "Lease",
    "Metric",
    "Run",
    "Store",
    "Trial",
    "TrialChanges",
    "TrialState",
    "boot_id",
]
