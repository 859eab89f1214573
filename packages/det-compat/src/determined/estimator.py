"""Determined's Estimator API, implemented by det-estimator."""

from __future__ import annotations

from typing import Any

from ._names import borrow, plugin, same

_get, __dir__ = borrow(
    __name__,
    {
        "det_estimator.experimental": {"EstimatorExperimentalContext": "Experimental"},
        "det_estimator": same(
            "EstimatorNativeContext",
            "EstimatorTrial",
            "EstimatorTrialContext",
            "MetricReducer",
            "RunHook",
            "ServingInputReceiverFn",
            "load_estimator_from_checkpoint_path",
        ),
    },
)

plugin("det_estimator", __name__)


def __getattr__(name: str) -> Any:
    return _get(name)
