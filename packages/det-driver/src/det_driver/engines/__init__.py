"""Engines: where runs are executed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from det_core.process import note_process

    from .base import Ended, Engine, RunSpec
    from .local import command, environ

_HOME_OF = {
    "Ended": "base",
    "Engine": "base",
    "RunSpec": "base",
    "command": "local",
    "environ": "local",
    "note_process": "process",
}

__all__ = ["Ended", "Engine", "RunSpec", "command", "environ", "note_process"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: processes start through this package, and should not load all engines."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
