"""The module of a trial's contexts in Determined's first versions."""

from __future__ import annotations

from typing import Any

from ._names import borrow, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_core": same("TrialContext"),
        "det_driver.native": same("NativeContext"),
        "determined.core": same("DistributedContext"),
    },
)


def __getattr__(name: str) -> Any:
    return _get(name)
