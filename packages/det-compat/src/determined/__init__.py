"""Determined's training APIs, implemented by det: `import determined as det`."""

from __future__ import annotations

import importlib
from typing import Any

from ._gone import watch
from ._names import borrow, same

__version__ = "0.1.0"
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
__all__ = [
    "LOG_FORMAT",
    "Categorical",
    "ClusterInfo",
    "Constant",
    "Double",
    "Integer",
    "InvalidHP",
    "Log",
    "NativeContext",
    "Trial",
    "TrialContext",
    "TrialInfo",
    "get_cluster_info",
    "import_from_path",
]

_MODULES = (
    "core",
    "errors",
    "estimator",
    "experimental",
    "keras",
    "launch",
    "pytorch",
    "tensorboard",
    "transformers",
    "util",
)
_borrowed, _listed = borrow(
    __name__,
    {
        "det_core": same("InvalidHP", "TrialContext", "import_from_path"),
        "det_core.core": same("ClusterInfo", "TrialInfo", "get_cluster_info"),
        "det_driver.native": same(
            "Categorical", "Constant", "Double", "Integer", "Log", "NativeContext"
        ),
        "determined._trial": same("Trial"),
    },
)
watch()


def __getattr__(name: str) -> Any:
    """Import a module on first access, so that PyTorch users do not need TensorFlow."""
    return importlib.import_module(f".{name}", __name__) if name in _MODULES else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), *_MODULES])
