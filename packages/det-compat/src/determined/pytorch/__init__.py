"""Determined's PyTorch API, implemented by det-torch."""

from __future__ import annotations

import importlib
from typing import Any

from .._names import borrow, plugin, same

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "ClipGradsL2Norm",
    "ClipGradsL2Value",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "reset_parameters",
    "to_device",
]

_MODULES = ("lightning", "samplers")
_RENAMED = {"PyTorchExperimentalContext": "Experimental"}
_borrowed, _listed = borrow(
    __name__,
    {
        "det_torch.context": _RENAMED,
        "det_torch": same(*(name for name in __all__ if name not in _RENAMED)),
    },
)

plugin("det_torch", __name__)


def __getattr__(name: str) -> Any:
    """Import a module on first access."""
    return importlib.import_module(f".{name}", __name__) if name in _MODULES else _borrowed(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_listed(), *_MODULES])
