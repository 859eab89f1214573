"""Searchers: pure objects that decide which trials to make and how long to train each."""

from __future__ import annotations

from ._custom import Ledger
from ._hyperband import hyperband_brackets
from ._make import adaptive_brackets, make
from ._rungs import rung_lengths
from ._sampling import RandomState
from ._search import Births, Method, Search
from .base import Close, Create, Exit, Objective, Operation, Searcher, Shutdown, Train, read_number
from .simulate import Segment, Simulation, simulate

__all__ = [
    "Births",
    "Close",
    "Create",
    "Exit",
    "Ledger",
    "Method",
    "Objective",
    "Operation",
    "RandomState",
    "Search",
    "Searcher",
    "Segment",
    "Shutdown",
    "Simulation",
    "Train",
    "adaptive_brackets",
    "hyperband_brackets",
    "make",
    "read_number",
    "rung_lengths",
    "simulate",
]
