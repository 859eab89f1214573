"""Determined's Keras API, implemented by det-keras."""

from __future__ import annotations

import importlib
from typing import Any

from .._names import borrow, plugin, same

__all__ = [
    "DeterminedCallback",
    "InputData",
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasNativeContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "TensorBoard",
    "load_model_from_checkpoint_path",
]

_RENAMED = {"TFKerasExperimentalContext": "Experimental"}
_borrowed, _listed = borrow(
    __name__,
    {
        "det_keras.experimental": _RENAMED,
        "det_keras": same(*(name for name in __all__ if name not in _RENAMED)),
    },
)

plugin("det_keras", __name__)


def __getattr__(name: str) -> Any:
    """Import a module on first access."""
    return importlib.import_module(f".{name}", __name__) if name == "callbacks" else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), "callbacks"])
