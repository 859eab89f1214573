"""Searchers: pure objects that decide which trials to make and how long to train each."""

from __future__ import annotations

from .base import Close, Create, Exit, Operation, Searcher, Shutdown, Train

__all__ = ["Close", "Create", "Exit", "Operation", "Searcher", "Shutdown", "Train"]
