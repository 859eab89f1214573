"""Determined's Native API and its client, over det-driver's."""

from __future__ import annotations

import importlib
from typing import Any

from .._names import borrow, same

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "Mode",
    "NativeContext",
    "Trial",
    "create",
    "create_trial_instance",
]

_MODULES = ("client", "estimator", "keras")
_borrowed, _listed = borrow(
    __name__,
    {
        "det_driver.client": {**same("Checkpoint", "Experiment", "Trial"), "Determined": "Client"},
        "det_driver.native": same("Mode", "NativeContext"),
        "determined.experimental._native": same("create", "create_trial_instance"),
    },
)


def __getattr__(name: str) -> Any:
    """Import a part when it is first asked for."""
    return importlib.import_module(f".{name}", __name__) if name in _MODULES else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), *_MODULES])
