"""Experiments, trials and checkpoints of the local store, for scripts and notebooks: `Client().get_experiment(7)`."""

from __future__ import annotations

from ._checkpoint import Checkpoint
from ._client import Client
from ._experiment import Experiment, Trial
from ._importances import Slice, importances, slices
from ._notebook import StatusLine
from ._reported import LogPart, Series, read_log
from ._searched import Table
from ._space import Space
from ._watch import Change, Watch

__all__ = [
    "Change",
    "Checkpoint",
    "Client",
    "Experiment",
    "LogPart",
    "Series",
    "Slice",
    "Space",
    "StatusLine",
    "Table",
    "Trial",
    "Watch",
    "importances",
    "read_log",
    "slices",
]
