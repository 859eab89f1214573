"""Chooses a trial's device and moves its batches there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from det_core import RunInfo

from .context import PyTorchTrialContext


def choose_device(run: RunInfo) -> torch.device:
    """Return the GPU of this rank. Returns the CPU if there is no GPU or the run has no slots."""
    if torch.cuda.is_available() and run.slots > 0:
        device = torch.device("cuda", run.distributed.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


class Moving:
    """Moves batches to the device if the first batch holds anything that must be moved."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.needed = context.auto_to_device

    def __call__(self, batch: Any) -> Any:
        self.needed = self._context.device.type != "cpu" or _holds_arrays(batch)
        return self._context.to_device(batch)


def _holds_arrays(data: Any) -> bool:
    """Return whether a batch holds anything that may have to be moved: NumPy arrays, tensors on
    other devices, or objects with a method `to`.
    """
    if isinstance(data, torch.Tensor):
        return data.device.type != "cpu"
    if isinstance(data, Mapping):
        return any(_holds_arrays(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return any(_holds_arrays(value) for value in data)
    return isinstance(data, np.ndarray) or hasattr(data, "to")
