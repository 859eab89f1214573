"""Searchers: pure objects that decide which trials to make and how long to train each."""

from __future__ import annotations

from ._ledger import Ledger
from ._make import make
from ._method import Births, Method
from ._objective import Objective, read_number
from ._rng import RandomState
from ._search import Search
from .base import Close, Create, Exit, Operation, Searcher, Shutdown, Train
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
    "make",
    "read_number",
    "simulate",
]
