"""Moves batches to the device and counts their records."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""The type of a batch of most data loaders, for annotations."""

_NOTHING_TO_MOVE = (str, bytes, int, float, complex, bool, type(None), np.generic)


def to_device(data: Any, device: torch.device, warned_types: set[type] | None = None) -> Any:
    """Move the tensors and arrays in `data`, and objects with a method `to`.

    Dicts, lists and tuples may be nested.

    Numeric arrays become tensors. Other objects are returned unchanged, with one warning for each
    type. Text and plain numbers cause no warning. Copies from pinned memory to a CUDA device are
    asynchronous. `warned_types` has no effect and is accepted for older callers.
    """
    return _moved(data, device, device.type == "cuda")


def _moved(data: Any, device: torch.device, non_blocking: bool) -> Any:
    kind = type(data)
    if kind is torch.Tensor:
        return data if data.device == device else data.to(device, non_blocking=non_blocking)
    if kind is list or kind is tuple:
        return kind([_moved(item, device, non_blocking) for item in data])
    if kind is dict:
        return {key: _moved(value, device, non_blocking) for key, value in data.items()}
    return _uncommon(data, device, non_blocking)


def _uncommon(data: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, _NOTHING_TO_MOVE):
        return data
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
        return torch.from_numpy(data).to(device, non_blocking=non_blocking)
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_moved(item, device, non_blocking) for item in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_moved(item, device, non_blocking) for item in data)
    if isinstance(data, Mapping):
        return _mapping(data, device, non_blocking)
    name = type(data).__name__
    # Python shows a warning once for each text and place, so that each type is named once.
    warnings.warn(
        f"a {name} in a batch was not moved to the device; give it a method to(device)",
        stacklevel=1,
    )
    return data


def _mapping(data: Mapping[Any, Any], device: torch.device, non_blocking: bool) -> Any:
    moved = {key: _moved(value, device, non_blocking) for key, value in data.items()}
    try:
        return type(data)(moved)  # type: ignore[call-arg]  # as dicts are made
    except TypeError:
        return moved


def data_length(batch: Any) -> int:
    """Return the number of records in a batch.

    It is the length of the first tensor or array, in nested dicts, lists and tuples.

    Raises ValueError for an empty batch, and TypeError if no tensor or array comes first.
    """
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        if batch.ndim == 0:
            raise TypeError(
                f"a batch begins with a single number ({_kind(batch)}), which is no column of"
                " records"
            )
        return len(batch)
    if isinstance(batch, (Mapping, list, tuple)):
        if not batch:
            raise ValueError(f"an empty {_kind(batch)} is no batch")
        return data_length(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0])
    raise TypeError(
        f"cannot tell how many records a {_kind(batch)} holds; put a tensor or an array first"
    )


def _kind(batch: Any) -> str:
    return type(batch).__name__
