"""TensorFlow's Estimator for det: trials with exact resume, TF1-style graphs, exporters and run hooks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._imports import need_tensorflow

if TYPE_CHECKING:
    from .context import EstimatorTrialContext
    from .load import load_estimator_from_checkpoint_path
    from .metrics import MetricReducer
    from .native import EstimatorNativeContext, init
    from .trial import EstimatorTrial, RunHook, ServingInputReceiverFn

_HOMES = {
    "context": ("EstimatorTrialContext",),
    "load": ("load_estimator_from_checkpoint_path",),
    "metrics": ("MetricReducer",),
    "native": ("EstimatorNativeContext", "init"),
    "trial": ("EstimatorTrial", "RunHook", "ServingInputReceiverFn"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "EstimatorNativeContext",
    "EstimatorTrial",
    "EstimatorTrialContext",
    "MetricReducer",
    "RunHook",
    "ServingInputReceiverFn",
    "init",
    "load_estimator_from_checkpoint_path",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must not import TensorFlow."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_estimator' has no attribute {name!r}")
    need_tensorflow()
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
