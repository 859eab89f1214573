"""Keras for det: trials, five kinds of data with exact resume, and callbacks for scripts of your own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._hooks import need_tensorflow

if TYPE_CHECKING:
    from .callbacks import TFKerasTensorBoard
    from .context import TFKerasTrialContext
    from .data import InputData, SequenceAdapter
    from .determined_callback import DeterminedCallback
    from .load import load_model_from_checkpoint_path
    from .native import TFKerasNativeContext, init
    from .tensorboard import TensorBoard
    from .trial import TFKerasTrial

_HOMES = {
    "callbacks": ("TFKerasTensorBoard",),
    "context": ("TFKerasTrialContext",),
    "data": ("InputData", "SequenceAdapter"),
    "determined_callback": ("DeterminedCallback",),
    "load": ("load_model_from_checkpoint_path",),
    "native": ("TFKerasNativeContext", "init"),
    "tensorboard": ("TensorBoard",),
    "trial": ("TFKerasTrial",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("callbacks",)  # public modules, imported when they are first asked for

__version__ = "0.1.0"
__all__ = [
    "DeterminedCallback",
    "InputData",
    "SequenceAdapter",
    "TFKerasNativeContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "TensorBoard",
    "init",
    "load_model_from_checkpoint_path",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must not import TensorFlow."""
    if name in _MODULES:
        need_tensorflow()
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_keras' has no attribute {name!r}")
    need_tensorflow()
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_MODULES])
