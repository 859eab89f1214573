"""The Native API for Estimators, lent by det-estimator."""

from __future__ import annotations

from typing import Any

from .._names import borrow, plugin, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_estimator": same(
            "init",
        )
    },
)

plugin("det_estimator", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
