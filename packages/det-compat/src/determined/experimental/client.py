"""Determined's client, over the local store: there is nothing to log in to."""

from __future__ import annotations

from typing import Any

from det_driver.client import Checkpoint, Client, Experiment, Trial
from det_driver.store import CheckpointState, ExperimentState, TrialState

from .._names import borrow

Determined = Client
_get, _ = borrow(__name__, {})

__all__ = [
    "Checkpoint",
    "CheckpointState",
    "Determined",
    "Experiment",
    "ExperimentState",
    "Trial",
    "TrialState",
    "create_experiment",
    "get_checkpoint",
    "get_experiment",
    "get_trial",
    "list_experiments",
    "login",
]


def __getattr__(name: str) -> Any:
    return _get(name)


def login(*args: Any, **kwargs: Any) -> None:
    """Accept what a master would have been told, and do nothing."""


def create_experiment(config: Any, model_dir: Any = None, **ignored: Any) -> Experiment:
    """Start an experiment in the background."""
    return Client().create_experiment(config, model_dir)


def get_experiment(experiment_id: int) -> Experiment:
    """Return an experiment of the local store."""
    return Client().get_experiment(experiment_id)


def get_trial(trial_id: int) -> Trial:
    """Return a trial of the local store."""
    return Client().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    """Return a checkpoint of the local store."""
    return Client().get_checkpoint(uuid)


def list_experiments() -> list[Experiment]:
    """Return the experiments of the local store, the newest first."""
    return Client().list_experiments()
