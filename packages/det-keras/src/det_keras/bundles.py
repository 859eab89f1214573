"""Checks the sizes in TensorFlow's files before TensorFlow reads them.

TensorFlow allocates whatever size a file claims, and aborts the process at malformed entries. Its
checkpoints are tensor bundles: shards of data, and an index of `BundleEntryProto` by name. The
index is a table in LevelDB's format
(https://github.com/google/leveldb/blob/main/doc/table_format.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from det_core import CheckpointError
from det_core.support.archives import check_size

_MAGIC, _FOOTER, _TRAILER = 0xDB4775248B80FB57, 48, 5
_MOST_DIMENSIONS = 254
_RECORD_HEAD, _RECORD_TAIL = 12, 4


def check_variables(prefix: Path) -> None:
    """Check a checkpoint's index. Checksums are left to TensorFlow.

    Raises CheckpointError if TensorFlow cannot read the index, or if it claims more than its files
    hold.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        _check_bundle(prefix, index.read_bytes())
    # Protobuf and Python raise errors of many types for malformed files.
    except Exception as error:
        raise unreadable(index, error) from error


def check_records(file: Path) -> None:
    """Raise CheckpointError if a record of an event file claims more than the file holds."""
    size, at = file.stat().st_size, 0
    with file.open("rb") as source:
        # An incomplete header at the end is normal in a file that is still written.
        while len(head := source.read(_RECORD_HEAD)) == _RECORD_HEAD:
            at += _RECORD_HEAD + int.from_bytes(head[:8], "little") + _RECORD_TAIL
            if at > size:
                raise unreadable(file, ValueError("a record is longer than the file"))
            source.seek(at)


def unreadable(file: Path, error: Exception) -> CheckpointError:
    """Return the error for a malformed file, with the first line of a library's message."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"{file} cannot be read: {reason}; the checkpoint is damaged")


def _check_bundle(prefix: Path, index: bytes) -> None:
    entries = _read_table(index)
    shards = BundleHeaderProto.FromString(entries.pop(b"")).num_shards
    sizes: dict[int, int] = {}
    needed = 0
    for name, value in entries.items():
        entry = BundleEntryProto.FromString(value)
        number = entry.shard_id
        if not 0 <= number < shards:
            raise ValueError(f"{name!r} lies in a shard that there is not")
        if number not in sizes:
            file = prefix.with_name(f"{prefix.name}.data-{number:05}-of-{shards:05}")
            sizes[number] = file.stat().st_size
        if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > sizes[number]:
            raise ValueError(f"{name!r} lies outside of its file")
        needed += _check_entry(name, entry)
    check_size(needed, sum(sizes.values()))


def _check_entry(name: bytes, entry: Any) -> int:
    """Return the number of bytes that a tensor needs in memory."""
    shape = [dimension.size for dimension in entry.shape.dim]
    if entry.shape.unknown_rank or len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"{name!r} has no shape")
    count = math.prod(shape)
    dtype = tf.dtypes.as_dtype(entry.dtype)
    if dtype == tf.resource or dtype._is_ref_dtype:
        raise ValueError(f"{name!r} is of a type that is not saved")
    # Strings and variants store their own lengths, which take at least a byte each.
    needed: int = count * (dtype.size or 1)
    if entry.slices:
        for piece in entry.slices:
            _check_slice(name, piece.extent, shape)
    elif entry.size < needed or (dtype.size and entry.size != needed):
        raise ValueError(f"{name!r} has {entry.size} bytes, and its shape {shape} needs {needed}")
    return needed


def _check_slice(name: bytes, extents: Any, shape: list[int]) -> None:
    """Raise ValueError for a slice that is not inside the tensor's shape.

    An extent without a length is a whole dimension.
    """
    if len(extents) != len(shape):
        raise ValueError(f"{name!r} has a part of another shape")
    for extent, size in zip(extents, shape, strict=True):
        length = extent.length if extent.HasField("length") else size - extent.start
        if extent.start < 0 or length < 0 or extent.start + length > size:
            raise ValueError(f"{name!r} has a part that lies outside of it")


def _read_table(data: bytes) -> dict[bytes, bytes]:
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise ValueError("it is no table of TensorFlow's")
    footer = data[-_FOOTER:]
    _, at = _read_handle(footer, 0)
    index, _ = _read_handle(footer, at)
    found: dict[bytes, bytes] = {}
    last, names = b"", 0
    for _, handle in _read_block(data, *index):
        for name, value in _read_block(data, *_read_handle(handle, 0)[0]):
            if found and name <= last:
                raise ValueError("its names are not in order")
            # Names share prefixes, so that few bytes can hold long names.
            names += len(name)
            check_size(names, len(data))
            found[name], last = value, name
    return found


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block.

    Raises ValueError if a binary search of the block would find other entries.
    """
    if offset + size + _TRAILER > len(data) or size < 8 or data[offset + size]:
        raise ValueError("a block lies outside of it, or is compressed")
    block = data[offset : offset + size]
    restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 * (1 + restarts)
    if end < 0:
        raise ValueError("a block is too short")
    begins, key, at = {0}, b"", 0
    while at < end:
        begin = at
        shared, at = _read_number(block, at)
        own, at = _read_number(block, at)
        length, at = _read_number(block, at)
        if shared > len(key) or at + own + length > end:
            raise ValueError("a name or a value lies outside of its block")
        if not shared:
            begins.add(begin)
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]
    if not {int.from_bytes(block[i : i + 4], "little") for i in range(end, size - 4, 4)} <= begins:
        raise ValueError("a search in a block begins between its entries")


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _read_number(data, at)
    size, at = _read_number(data, at)
    return (offset, size), at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in LevelDB's format, seven bits per byte, and the position behind it."""
    number = 0
    for shift in range(0, 64, 7):
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise ValueError("it holds a number of more than 64 bits")
