"""Checkpoints of TensorFlow's in which anything may be claimed, with right checksums."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

MAGIC = 0xDB4775248B80FB57


def checksum(data: bytes) -> int:
    """Return the CRC-32C, masked as LevelDB does."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def number(value: int) -> bytes:
    """Return a number as LevelDB writes it."""
    found = b""
    while value >= 128:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def entry(dtype: int = 1, shape: Sequence[int] = (), **fields: Any) -> Any:
    """Return what an index says of a tensor."""
    dims = [TensorShapeProto.Dim(size=each) for each in shape]
    return BundleEntryProto(dtype=dtype, shape=TensorShapeProto(dim=dims), **fields)


def entries(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[dict[bytes, bytes], bytes]:
    """Return the entries of arrays by name, the header first, and their data."""
    header = BundleHeaderProto(num_shards=1)
    header.version.producer = 1
    found, data = {b"": header.SerializeToString()}, b""
    for name, array in sorted(arrays.items()):
        raw, dtype = array.tobytes(), tf.as_dtype(array.dtype).as_datatype_enum
        of = entry(dtype, array.shape, offset=len(data), size=len(raw), crc32c=checksum(raw))
        found[name.encode()] = of.SerializeToString()
        data += raw
    return found, data


def block(entries: Sequence[tuple[bytes, bytes]], restarts: Sequence[int] = (0,)) -> bytes:
    """Return a block of a table."""
    body = b"".join(
        number(0) + number(len(key)) + number(len(value)) + key + value for key, value in entries
    )
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(entries: bytes) -> bytes:
    """Return a table with one block of entries."""
    index = block([(b"\xff", number(0) + number(len(entries)))])
    data, handles = b"", []
    for each in (entries, block([]), index):
        handles.append(number(len(data)) + number(len(each)))
        data += each + b"\0" + struct.pack("<I", checksum(each + b"\0"))
    return data + b"".join(handles[1:]).ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def write_bundle(prefix: Path, of: Mapping[bytes, bytes], data: bytes) -> Path:
    """Write a checkpoint, and return its prefix."""
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(block(list(of.items()))))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    return prefix
