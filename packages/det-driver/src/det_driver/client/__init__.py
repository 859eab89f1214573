"""Experiments, trials and checkpoints of a home or a server, for scripts and notebooks.

Begin with `Client().get_experiment(7)`.
"""

from __future__ import annotations

from ._calls import Calls
from ._checkpoint import Checkpoint
from ._client import Client
from ._experiment import Experiment, Trial
from ._importances import FEWEST_TRIALS, Slice, importances, slices
from ._model import Model, ModelVersion
from ._notebook import StatusLine
from ._reading import LogPart, Series, read_log
from ._searched import Mattered, Table
from ._space import Space
from ._watch import Change, Watch

__all__ = [
    "FEWEST_TRIALS",
    "Calls",
    "Change",
    "Checkpoint",
    "Client",
    "Experiment",
    "LogPart",
    "Mattered",
    "Model",
    "ModelVersion",
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
