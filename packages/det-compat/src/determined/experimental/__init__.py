"""Determined's Native API and its client, implemented by det-driver."""

from __future__ import annotations

import importlib
from typing import Any

from .._names import borrow, same

__all__ = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Mode",
    "Model",
    "ModelVersion",
    "NativeContext",
    "Trial",
    "TrialReference",
    "create",
    "create_trial_instance",
]

_MODULES = ("client", "estimator", "keras")
_borrowed, _listed = borrow(
    __name__,
    {
        "determined.experimental.client": same(
            "Checkpoint",
            "Determined",
            "Experiment",
            "ExperimentReference",
            "Model",
            "ModelVersion",
            "Trial",
            "TrialReference",
        ),
        "det_driver.native": same("Mode", "NativeContext"),
        "determined.experimental._native": same("create", "create_trial_instance"),
    },
)


def __getattr__(name: str) -> Any:
    """Import a module on first access."""
    return importlib.import_module(f".{name}", __name__) if name in _MODULES else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), *_MODULES])
