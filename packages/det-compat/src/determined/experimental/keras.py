"""The Native API for Keras, lent by det-keras."""

from __future__ import annotations

from typing import Any

from .._names import borrow, plugin, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_keras": same(
            "init",
        )
    },
)

plugin("det_keras", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
