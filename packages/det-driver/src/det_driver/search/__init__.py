"""Searchers: pure objects that decide which trials to create and how long to train each."""

from __future__ import annotations

from ..space import MOST_DRAWS, Limits, count_steps, step_at
from ._auto import Choice, as_named, choose
from ._combined import combined
from ._custom import Ledger
from ._hyperband import hyperband_brackets
from ._make import made, make
from ._rungs import rung_lengths
from ._sampler import Observations, Sampler, UnitCube
from ._sampling import RandomState
from ._schedules import adaptive_brackets
from ._search import Method, Search, TrialFactory
from .base import (
    Close,
    Create,
    EarlierResult,
    Exit,
    Objective,
    Operation,
    Searcher,
    Shutdown,
    Train,
    read_number,
)
from .simulate import Segment, Simulation, simulate

__all__ = [
    "MOST_DRAWS",
    "Choice",
    "Close",
    "Create",
    "EarlierResult",
    "Exit",
    "Ledger",
    "Limits",
    "Method",
    "Objective",
    "Observations",
    "Operation",
    "RandomState",
    "Sampler",
    "Search",
    "Searcher",
    "Segment",
    "Shutdown",
    "Simulation",
    "Train",
    "TrialFactory",
    "UnitCube",
    "adaptive_brackets",
    "as_named",
    "choose",
    "combined",
    "count_steps",
    "hyperband_brackets",
    "made",
    "make",
    "read_number",
    "rung_lengths",
    "simulate",
    "step_at",
]
