"""Experiments, trials and checkpoints of the local store, for scripts and notebooks: `Client().get_experiment(7)`."""

from __future__ import annotations

from ._checkpoint import Checkpoint
from ._client import Client
from ._experiment import Experiment, Trial

__all__ = ["Checkpoint", "Client", "Experiment", "Trial"]
