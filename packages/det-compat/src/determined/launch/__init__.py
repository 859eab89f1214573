"""Determined's launchers: `python3 -m determined.launch.torch_distributed -- python3 train.py`."""

from __future__ import annotations

from typing import Any

from .._names import borrow

__all__: tuple[str, ...] = ()

_get, __dir__ = borrow(__name__, {})


def __getattr__(name: str) -> Any:
    return _get(name)
