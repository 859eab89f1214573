"""Python objects as bytes: pickled, with the memory of arrays beside the pickle, so that it is not copied.

Only what came over an authenticated connection may be decoded, as unpickling runs code.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

Parts = list[bytes | memoryview]

_COUNT = struct.Struct("!I")
_SIZE = struct.Struct("!Q")


def encode(value: Any) -> Parts:
    """Return an object as parts, whose concatenation `decode` understands."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if not buffers:
        return [_COUNT.pack(0), data]
    raw = [buffer.raw() for buffer in buffers]
    sizes = b"".join(_SIZE.pack(view.nbytes) for view in raw)
    return [_COUNT.pack(len(raw)) + sizes, *raw, data]


def decode(data: memoryview) -> Any:
    """Return the object; its arrays lie in `data`, and can be written where that can."""
    (count,) = _COUNT.unpack_from(data)
    if not count:
        return pickle.loads(data[_COUNT.size :])
    at = _COUNT.size + count * _SIZE.size
    buffers = []
    for n in range(count):
        (size,) = _SIZE.unpack_from(data, _COUNT.size + n * _SIZE.size)
        buffers.append(data[at : at + size])
        at += size
    return pickle.loads(data[at:], buffers=buffers)


def join_frames(frames: Sequence[Parts | memoryview]) -> Parts:
    """Return frames as parts of one, which `split_frames` takes apart."""
    parts: Parts = [_SIZE.pack(len(frames))]
    for frame in frames:
        pieces: Parts = [frame] if isinstance(frame, memoryview) else frame
        parts.append(_SIZE.pack(sum(map(_bytes, pieces))))
        parts.extend(pieces)
    return parts


def split_frames(data: memoryview) -> list[memoryview]:
    """Take apart what `join_frames` put together."""
    (count,) = _SIZE.unpack_from(data)
    frames, at = [], _SIZE.size
    for _ in range(count):
        (length,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        frames.append(data[at : at + length])
        at += length
    return frames


def _bytes(part: bytes | memoryview) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)
