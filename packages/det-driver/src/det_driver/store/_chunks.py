"""Pack reports in columns, without loss and in a tenth of the space that rows take."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from det_driver.store._schema import dump, load

LARGEST_BYTES = 256 << 20
"""The size limit of a decompressed chunk. Without it a small file could decompress to any size."""


class Report(NamedTuple):
    """The values that a run reported at a position."""

    run_id: int
    batches: int
    time: float
    values: dict[str, Any]


class _Chunk(msgspec.Struct, array_like=True):
    """Reports in columns. `_packed` packs the numbers.

    A column has the values of those reports that have its metric. A `shape` lists the names of the
    metrics of a report.
    """

    runs: bytes
    batches: bytes
    times: bytes
    shapes: list[list[str]]
    shape: bytes
    columns: dict[str, tuple[str, bytes]]


_decode = msgspec.msgpack.Decoder(_Chunk).decode


def pack(reports: Sequence[Report]) -> bytes | None:
    """Return the reports as bytes, or None if they are too large for a chunk.

    The bytes keep each number exactly: NaN, infinities, the sign of a zero, and ints as ints.
    """
    shapes = {
        shape: number
        for number, shape in enumerate(dict.fromkeys(tuple(report.values) for report in reports))
    }
    names = dict.fromkeys(name for shape in shapes for name in shape)
    columns = {
        name: _column([r.values[name] for r in reports if name in r.values]) for name in names
    }
    chunk = _Chunk(
        _packed(array("q", [report.run_id for report in reports])),
        _packed(array("q", [report.batches for report in reports])),
        _packed(array("d", [report.time for report in reports])),
        [list(shape) for shape in shapes],
        _packed(array("q", [shapes[tuple(report.values)] for report in reports])),
        columns,
    )
    encoded = msgspec.msgpack.encode(chunk)
    return zlib.compress(encoded, 1) if len(encoded) <= LARGEST_BYTES else None


def unpack(data: bytes) -> Iterator[Report]:
    """Yield the reports of a chunk."""
    chunk = _open(data)
    columns = {name: iter(_values(*column)) for name, column in chunk.columns.items()}
    lines = zip(
        *(_values(kind, of) for kind, of in zip("qqdq", _heads(chunk), strict=True)), strict=True
    )
    for run, batches, time, shape in lines:
        yield Report(
            run, batches, time, {name: next(columns[name]) for name in chunk.shapes[shape]}
        )


def unpack_metric(data: bytes, name: str, along: str) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the positions and the values of one metric in a chunk.

    `along` names the kind of position: `batches`, `time`, or another metric. Reports without the
    metric are left out.
    """
    chunk = _open(data)
    known = {**chunk.columns, "batches": ("q", chunk.batches), "time": ("d", chunk.times)}
    if len(chunk.shapes) == 1:
        return (
            (_values(*known[along]), _values(*known[name]))
            if {along, name} <= known.keys()
            else ((), ())
        )
    return metric_of(unpack(data), name, along)


def _open(data: bytes) -> _Chunk:
    stream = zlib.decompressobj()
    try:
        encoded = stream.decompress(data, LARGEST_BYTES)
        if not stream.eof:
            wrong = (
                f"decompress to more than {LARGEST_BYTES:,}"
                if len(encoded) == LARGEST_BYTES
                else "are cut short"
            )
            raise ValueError(f"{len(data):,} bytes of metrics {wrong}")
        return _decode(encoded)
    except (msgspec.DecodeError, zlib.error) as error:
        raise ValueError(str(error)) from error


def metric_of(reports: Iterable[Report], name: str, along: str) -> tuple[list[Any], list[Any]]:
    """Return the positions and the values of one metric in reports that are not packed."""
    known = (
        {**report.values, "batches": report.batches, "time": report.time} for report in reports
    )
    pairs = [(each[along], each[name]) for each in known if {along, name} <= each.keys()]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _heads(chunk: _Chunk) -> tuple[bytes, bytes, bytes, bytes]:
    return chunk.runs, chunk.batches, chunk.times, chunk.shape


def _column(values: list[Any]) -> tuple[str, bytes]:
    """Return the values in the smallest encoding of their types: doubles, 64-bit ints, or JSON."""
    types = set(map(type, values))
    if types == {float}:
        return "d", _packed(array("d", values))
    if types == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return "q", _packed(array("q", values))
    return "j", dump(values).encode()


def _values(kind: str, data: bytes) -> Sequence[Any]:
    if kind == "j":
        values: list[Any] = load(data.decode())
        return values
    numbers = array(kind)
    count = len(data) // 8
    whole = bytearray(len(data))
    for place in range(8):
        whole[place::8] = data[place * count : (place + 1) * count]
    numbers.frombytes(whole)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _packed(numbers: array[Any]) -> bytes:
    """Return the first bytes of all numbers, then their second bytes, and so on.

    Bytes of the same significance are similar, which compresses well.
    """
    if sys.byteorder == "big":
        numbers.byteswap()
    whole = numbers.tobytes()
    return b"".join(whole[place::8] for place in range(8))
