"""The conformance kit: suites that plugins inherit, and fakes that show how."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._adapter_suite import AdapterSuite
    from ._onevar import OneVar
    from ._runs import Run, Runs
    from ._searcher_suite import SearcherSuite
    from ._storage_suite import StorageSuite
    from ._suite import Suite

_HOMES = {
    "AdapterSuite": "_adapter_suite",
    "OneVar": "_onevar",
    "Run": "_runs",
    "Runs": "_runs",
    "SearcherSuite": "_searcher_suite",
    "StorageSuite": "_storage_suite",
    "Suite": "_suite",
}

__version__ = "0.1.0"
__all__ = ["AdapterSuite", "OneVar", "Run", "Runs", "SearcherSuite", "StorageSuite", "Suite"]


def __getattr__(name: str) -> Any:
    """Import a suite when it is asked for: `det --help` imports this package, and not pytest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
