"""Optuna's samplers as a searcher for det."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Optuna
    from .search import OptunaSearch, make

_HOME_OF = {"Optuna": "config", "OptunaSearch": "search", "make": "search"}

__version__ = "0.1.0"
__all__ = ["Optuna", "OptunaSearch", "make"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must stay light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_optuna' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
