"""Encodes the objects that ranks exchange: as msgpack where their types are known, else pickled.

Known types are None, booleans, numbers, text, bytes, lists, tuples, sets, dicts, and NumPy's arrays
and scalars. Subclasses are not known. Known types are read without unpickling, and det itself sends
no other ones. The memory of arrays is sent apart from the rest, so that it is not copied. An object
that occurs twice arrives as two objects.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec

from ._star import Parts

_SIZE = struct.Struct("!Q")
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_KEYS = frozenset({str})
_MAKERS: tuple[Callable[[Any], Any], ...] = (list, tuple, set, frozenset)
_DICT, _ARRAY, _SCALAR, _NUMBER = 4, 5, 6, 7
_TAGS: dict[type, int] = {list: 0, tuple: 1, set: 2, frozenset: 3, dict: _DICT}
_NUMPY_KINDS = "biufcSUmM"
_AS_IT_IS, _TAGGED, _PICKLED = b"\0", b"\1", b"\2"


class _Unknown(Exception):
    """A value of an unknown type."""


def encode_value(value: Any) -> Parts:
    """Return an object as parts of a frame, which `decode_value` decodes when they are joined."""
    buffers: list[Any] = []
    try:
        if _is_plain(value):
            # Raised for whole numbers beyond 64 bits.
            with suppress(OverflowError):
                return join_frames([[_AS_IT_IS, msgspec.msgpack.encode(value)]])
        words = msgspec.msgpack.encode(_words(value, buffers))
        return join_frames([*buffers, [_TAGGED, words]])
    except (_Unknown, RecursionError, UnicodeEncodeError):
        buffers.clear()
        pickled = pickle.dumps(
            value, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw())
        )
        return join_frames([*buffers, [_PICKLED, pickled]])


def decode_value(data: memoryview) -> Any:
    """Return the object. Its arrays share the memory of `data`, and are writable where that is.

    Unpickling runs code: `data` must come from a rank of the same run, over a connection of
    `det_node.wire`.
    """
    *buffers, words = split_frames(data)
    kind, content = words[:1], words[1:]
    if kind == _PICKLED:
        # A rank of the same run has sent it over an authenticated connection.
        return pickle.loads(content, buffers=buffers)  # nosec B301
    plain = msgspec.msgpack.decode(content)
    return plain if kind == _AS_IT_IS else _value(plain, buffers)


def _is_plain(value: Any) -> bool:
    """Return whether msgpack has all types of a value.

    The check of the many numbers in a report runs in C.
    """
    kind = type(value)
    if kind is not list and (kind is not dict or not _KEYS.issuperset(map(type, value))):
        return kind in _PLAIN
    items = value.values() if kind is dict else value
    return _PLAIN.issuperset(map(type, items)) or all(map(_is_plain, items))


def _words(value: Any, buffers: list[Any]) -> Any:
    kind = type(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else [_NUMBER, hex(value)]
    if kind in _PLAIN:
        return value
    tag = _TAGS.get(kind)
    if tag is not None:
        items = [*value, *value.values()] if tag == _DICT else value
        return [tag, *[_words(each, buffers) for each in items]]
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.ndarray):
        raise _Unknown
    if value.dtype.kind in _NUMPY_KINDS and value.dtype.itemsize:
        if kind is numpy.ndarray:
            buffers.append(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data)
            return [_ARRAY, value.dtype.str, len(buffers) - 1, *value.shape]
        if kind is value.dtype.type:
            return [_SCALAR, value.dtype.str, value.tobytes()]
    raise _Unknown


def _value(words: Any, buffers: Sequence[memoryview]) -> Any:
    if type(words) is not list:
        return words
    tag, *rest = words
    if tag == _ARRAY:
        kind, at, *shape = rest
        return import_module("numpy").frombuffer(buffers[at], kind).reshape(shape)
    if tag == _SCALAR:
        return import_module("numpy").frombuffer(rest[1], rest[0])[0]
    if tag == _NUMBER:
        return int(rest[0], 16)
    found = [_value(each, buffers) for each in rest]
    half = len(found) // 2
    return (
        dict(zip(found[:half], found[half:], strict=True)) if tag == _DICT else _MAKERS[tag](found)
    )


def join_frames(frames: Sequence[Parts | memoryview]) -> Parts:
    """Return the parts of one frame that holds all frames, which `split_frames` splits again."""
    parts: Parts = [_SIZE.pack(len(frames))]
    for frame in frames:
        pieces: Parts = [frame] if isinstance(frame, memoryview) else frame
        parts.append(_SIZE.pack(sum(map(len, pieces))))
        parts.extend(pieces)
    return parts


def split_frames(data: memoryview) -> list[memoryview]:
    """Return the frames that `join_frames` joined."""
    (count,) = _SIZE.unpack_from(data)
    frames, at = [], _SIZE.size
    for _ in range(count):
        (length,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        frames.append(data[at : at + length])
        at += length
    return frames
