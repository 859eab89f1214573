"""The state of a trial except its weights: JSON, and arrays in a separate file.

Nothing in it is ever unpickled.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import CheckpointError, TrialError
from det_core.support.archives import check_zip

STATE, ARRAYS = "state.json", "arrays.npz"
_ARRAY, _FLOAT, _PAIRS, _TUPLE, _TENSOR = (
    "__array__",
    "__float__",
    "__pairs__",
    "__tuple__",
    "__tensor__",
)


def write_state(contents: dict[str, Any], directory: Path) -> None:
    """Write plain data and arrays.

    Raises TrialError for any other value, with its place in the state.
    """
    arrays: dict[str, Any] = {}
    encoded = _encode(contents, "the state", arrays)
    (directory / STATE).write_text(json.dumps(encoded))
    with (directory / ARRAYS).open("wb") as file:
        np.savez(file, **arrays)


def read_state(directory: Path) -> dict[str, Any]:
    """Read the files of `write_state`.

    Raises CheckpointError if there are none or they are damaged.
    """
    file = directory / STATE
    if not file.is_file():
        raise CheckpointError(
            f"{directory} holds no {STATE}; name the directory of a checkpoint of a TFKerasTrial"
        )
    try:
        check_zip(directory / ARRAYS)
        with np.load(directory / ARRAYS, allow_pickle=False) as arrays:
            decoded: dict[str, Any] = _decode(json.loads(file.read_text()), arrays)
    # NumPy and zipfile raise errors of many types for malformed files.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} cannot be read: {reason}; the checkpoint is damaged"
        ) from error
    return decoded


def is_plain(value: Any) -> bool:
    """Return whether a value can be written."""
    try:
        _encode(value, "", {})
    except TrialError:
        return False
    return True


def equal(one: Any, other: Any) -> bool:
    """Return whether two values that can be written are equal, and of the same types."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(np.array_equal(one, other))


def _encode(value: Any, place: str, arrays: dict[str, Any]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_encode(inner, f"{place}[{i}]", arrays) for i, inner in enumerate(value)]
        return items if type(value) is list else {_TUPLE: items}
    if type(value) is dict:
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {
                key: _encode(inner, f"{place}[{key!r}]", arrays) for key, inner in value.items()
            }
        pairs = [
            [_encode(k, f"a key of {place}", arrays), _encode(v, f"{place}[{k!r}]", arrays)]
            for k, v in value.items()
        ]
        return {_PAIRS: pairs}
    if isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind not in "OU":
        array = np.asarray(value)
        name = f"a{len(arrays)}"
        arrays[name] = array
        return {_ARRAY: name, "dtype": str(array.dtype)}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return {_TENSOR: _encode(np.asarray(value.numpy()), place, arrays)}
    raise TrialError(
        f"{place} is {type(value).__name__}, which a checkpoint cannot hold safely; keep numbers,"
        " text, arrays, lists, dicts there"
    )


def _decode(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [_decode(inner, arrays) for inner in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        array = arrays[value[_ARRAY]]
        return array.view(_dtype(value["dtype"])) if array.dtype.kind == "V" else array
    if _TENSOR in value:
        return tf.constant(_decode(value[_TENSOR], arrays))
    if _FLOAT in value:
        return float(value[_FLOAT])
    if _TUPLE in value:
        return tuple(_decode(inner, arrays) for inner in value[_TUPLE])
    if _PAIRS in value:
        return {_decode(key, arrays): _decode(inner, arrays) for key, inner in value[_PAIRS]}
    return {key: _decode(inner, arrays) for key, inner in value.items()}


def _dtype(name: str) -> Any:
    """Return a type that NumPy writes as raw bytes, such as bfloat16, which TensorFlow adds."""
    return tf.as_dtype(name).as_numpy_dtype
