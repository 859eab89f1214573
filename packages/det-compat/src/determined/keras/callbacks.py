"""Callbacks for a TFKerasTrial, implemented by det-keras."""

from __future__ import annotations

from typing import Any

from .._names import borrow, plugin, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_keras.callbacks": same(
            "Callback", "EarlyStopping", "LearningRateScheduler", "ReduceLROnPlateau", "TensorBoard"
        )
    },
)

plugin("det_keras.callbacks", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
