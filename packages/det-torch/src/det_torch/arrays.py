"""Stores NumPy's numbers and arrays in a checkpoint as plain data."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

from det_core import CheckpointError

_NUMPY = "__numpy__"
# Numbers, text and times. Their bytes are values and hold no pointers.
_KINDS = "biufcSUmM"
_TYPE = re.compile(rf"[<>|=][{_KINDS}]\d+(\[\d*[a-zA-Zμ]+\])?")


def is_numpy(value: Any) -> bool:
    """Return whether a value is a NumPy number or array that `encode_numpy` can write."""
    return (
        isinstance(value, np.generic) or type(value) is np.ndarray
    ) and value.dtype.kind in _KINDS


def encode_numpy(value: Any) -> Any:
    """Return a value in which a tuple of plain data replaces each NumPy number and array.

    NumPy's own pickles cannot be read safely: they can set the layout of a type. A container that
    holds no NumPy value is returned unchanged.
    """
    # A number must stay hashable, as it may be a key of a dict.
    if isinstance(value, np.generic) and is_numpy(value):
        return (_NUMPY, value.dtype.str, value.tobytes().decode("latin-1"))
    if is_numpy(value):
        data = (
            torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)
            if value.nbytes
            else torch.empty(0)
        )
        return (_NUMPY, value.dtype.str, data.to(torch.uint8), value.shape)
    return rebuilt(value, encode_numpy)


def decode_numpy(value: Any) -> Any:
    """Return the value that `encode_numpy` got.

    Raises CheckpointError if the bytes do not fit the named type and shape.
    """
    if type(value) is tuple and len(value) in (3, 4) and value[0] == _NUMPY:
        return _array(*value[1:])
    return rebuilt(value, decode_numpy)


def _array(name: Any, data: Any, shape: Any = None) -> Any:
    kind = _kind(name)
    if isinstance(data, str) and shape is None:
        try:
            held = data.encode("latin-1")
        except UnicodeEncodeError:
            _refuse(name)
        if len(held) != kind.itemsize:
            _refuse(name)
        return np.frombuffer(held, kind)[0] if held else kind.type()
    if not isinstance(data, torch.Tensor) or data.dtype != torch.uint8 or type(shape) is not tuple:
        _refuse(name)
    if (
        not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(shape) * kind.itemsize != data.numel()
    ):
        _refuse(name)
    return np.ndarray(shape, kind, data.numpy().tobytes() or b"\0").copy()


def _kind(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not _TYPE.fullmatch(name):
        _refuse(name)
    try:
        return np.dtype(name)
    except TypeError:
        _refuse(name)


def _refuse(name: Any) -> NoReturn:
    raise CheckpointError(f"the checkpoint holds an array of type {name!r:.40} that is damaged")


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of changed values, or the same container if nothing in it changes."""
    kind = type(value)
    if isinstance(value, dict):
        changed = [(change(key), change(inner)) for key, inner in value.items()]
        before = value.items()
        if all(
            a is key and b is inner for (a, b), (key, inner) in zip(changed, before, strict=True)
        ):
            return value
        # `copy` keeps the attributes of a state dict, such as the versions of modules.
        same = copy.copy(value)
        same.clear()
        for key, inner in changed:
            same[key] = inner
        return same
    if kind in (list, tuple, set):
        items = list(value)
        made = [change(inner) for inner in items]
        return value if all(a is b for a, b in zip(made, items, strict=True)) else kind(made)
    return value
