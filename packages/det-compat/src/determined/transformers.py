"""Hugging Face's Trainer with det, implemented by det-torch."""

from __future__ import annotations

from typing import Any

from ._names import borrow, plugin, same

_get, __dir__ = borrow(__name__, {"det_torch.transformers": same("DetCallback")})

plugin("det_torch", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
