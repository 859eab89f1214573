"""PyTorch for det: trials, data loaders with exact resume, callbacks, reducers and a Trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import ClipGradsL2Norm, ClipGradsL2Value, PyTorchCallback
    from .context import PyTorchTrialContext
    from .data import DataLoader, TorchData, data_length, to_device
    from .load import CheckpointLoadContext, load_trial_from_checkpoint_path
    from .lr import LRScheduler
    from .reducers import MetricReducer
    from .reduction import Reducer
    from .result import FitResult, Report, SavedCheckpoint
    from .trainer import Trainer, init
    from .trial import PyTorchTrial, reset_parameters
    from .units import Batch, Epoch, TrainUnit

_HOMES = {
    "callbacks": ("ClipGradsL2Norm", "ClipGradsL2Value", "PyTorchCallback"),
    "context": ("PyTorchTrialContext",),
    "data": ("DataLoader", "TorchData", "data_length", "to_device"),
    "load": ("CheckpointLoadContext", "load_trial_from_checkpoint_path"),
    "lr": ("LRScheduler",),
    "reducers": ("MetricReducer",),
    "reduction": ("Reducer",),
    "result": ("FitResult", "Report", "SavedCheckpoint"),
    "trainer": ("Trainer", "init"),
    "trial": ("PyTorchTrial", "reset_parameters"),
    "units": ("Batch", "Epoch", "TrainUnit"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "ClipGradsL2Norm",
    "ClipGradsL2Value",
    "DataLoader",
    "Epoch",
    "FitResult",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "Report",
    "SavedCheckpoint",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "reset_parameters",
    "to_device",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must not import torch."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_torch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
