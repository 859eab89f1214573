"""Where a trial computes, and its batches on their way there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from det_core import RunInfo

from .context import PyTorchTrialContext


def choose_device(run: RunInfo) -> torch.device:
    """Return the GPU of this rank, or the CPU where there is none or no slot was asked for."""
    if torch.cuda.is_available() and run.slots > 0:
        device = torch.device("cuda", run.distributed.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


class Moving:
    """Moves batches to the device, where the first shows that there is anything to move."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.needed = context.auto_to_device

    def __call__(self, batch: Any) -> Any:
        self.needed = self._context.device.type != "cpu" or _holds_arrays(batch)
        return self._context.to_device(batch)


def _holds_arrays(data: Any) -> bool:
    """Return whether anything in a batch is not on the CPU as a tensor yet, or is of a kind that cannot be told."""
    if isinstance(data, torch.Tensor):
        return data.device.type != "cpu"
    if isinstance(data, Mapping):
        return any(_holds_arrays(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return any(_holds_arrays(value) for value in data)
    return isinstance(data, np.ndarray) or hasattr(data, "to")
