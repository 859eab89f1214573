"""Determined's Native API and its client, lent by det-core."""

from __future__ import annotations

import importlib
from typing import Any

from .._names import borrow, same

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "Mode",
    "Trial",
    "create",
]

_MODULES = ("client", "estimator", "keras")
_borrowed, _listed = borrow(
    __name__,
    {
        "det_driver.client": {**same("Checkpoint", "Experiment", "Trial"), "Determined": "Client"},
        "det_driver.native": same("Mode", "create"),
    },
)


def __getattr__(name: str) -> Any:
    """Import a part when it is first asked for."""
    return importlib.import_module(f".{name}", __name__) if name in _MODULES else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), *_MODULES])
