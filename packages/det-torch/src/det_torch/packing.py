"""Converts NumPy's arrays and numbers, and tensors with their devices, to plain data for a
checkpoint and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import state

_ARRAY, _NUMBER, _DEVICE = "__numpy_array__", "__numpy_number__", "__tensor_on__"


def pack(value: Any) -> Any:
    """Return plain data for a value.

    The value may consist of containers, tensors, numbers, text and numeric arrays. Raises TypeError
    for other objects.
    """
    if type(value) is dict:
        return {_plain(key): pack(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(pack(inner) for inner in value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, np.number | np.bool_):
        return {_NUMBER: torch.from_numpy(np.array(value))}
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return {_DEVICE: str(value.device), "tensor": value}
    return _plain(value)


def unpack(value: Any) -> Any:
    """Return the value that `pack` got."""
    if type(value) is dict:
        if set(value) == {_ARRAY}:
            return value[_ARRAY].numpy()
        if set(value) == {_NUMBER}:
            return value[_NUMBER].numpy()[()]
        if set(value) == {_DEVICE, "tensor"}:
            return value["tensor"].to(value[_DEVICE])
        return {key: unpack(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpack(inner) for inner in value)
    return value


def _plain(value: Any) -> Any:
    if not state.is_plain(value):
        raise TypeError(f"{type(value).__name__} is no plain data")
    return value
