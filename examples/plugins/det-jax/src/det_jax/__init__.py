"""JAX for det: a trial is a pure loss, an optax optimizer and arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import ArrayData
    from .trial import JaxTrial

_HOME_OF = {"ArrayData": "data", "JaxTrial": "trial"}

__version__ = "0.1.0"
__all__ = ["ArrayData", "JaxTrial"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must not import JAX."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
