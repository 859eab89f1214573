"""Determined's Lightning API, implemented by det-lightning."""

from __future__ import annotations

from typing import Any

from .._names import borrow, plugin, same

_get, __dir__ = borrow(__name__, {"det_lightning": same("LightningAdapter")})

plugin("det_lightning", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
