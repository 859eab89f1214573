"""Reports in columns, packed: a tenth of what they take as rows, and as exact."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from det_driver.store._schema import dump, load


class Report(NamedTuple):
    """What a run reported at a position."""

    run_id: int
    batches: int
    time: float
    values: dict[str, Any]


class _Chunk(msgspec.Struct, array_like=True):
    """Numbers are packed by `_packed`; a column has the values of those reports that have it, whose names are a `shape`."""

    runs: bytes
    batches: bytes
    times: bytes
    shapes: list[list[str]]
    shape: bytes
    columns: dict[str, tuple[str, bytes]]


_decode = msgspec.msgpack.Decoder(_Chunk).decode


def pack(reports: Sequence[Report]) -> bytes:
    """Return the reports as bytes, which take each number as it is: NaN, infinities, the sign of a zero, ints as ints."""
    shapes = {shape: number for number, shape in enumerate(dict.fromkeys(tuple(report.values) for report in reports))}
    names = dict.fromkeys(name for shape in shapes for name in shape)
    columns = {name: _column([r.values[name] for r in reports if name in r.values]) for name in names}
    chunk = _Chunk(
        _packed(array("q", [report.run_id for report in reports])),
        _packed(array("q", [report.batches for report in reports])),
        _packed(array("d", [report.time for report in reports])),
        [list(shape) for shape in shapes],
        _packed(array("q", [shapes[tuple(report.values)] for report in reports])),
        columns,
    )
    return zlib.compress(msgspec.msgpack.encode(chunk), 1)


def unpack(data: bytes) -> Iterator[Report]:
    """Yield the reports again."""
    chunk = _decode(zlib.decompress(data))
    columns = {name: iter(_values(*column)) for name, column in chunk.columns.items()}
    lines = zip(*(_values(kind, of) for kind, of in zip("qqdq", _heads(chunk), strict=True)), strict=True)
    for run, batches, time, shape in lines:
        yield Report(run, batches, time, {name: next(columns[name]) for name in chunk.shapes[shape]})


def unpack_metric(data: bytes, name: str, along: str) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return where those reports stand that have a metric, and its values; `along` is batches, time, or another metric."""
    chunk = _decode(zlib.decompress(data))
    known = {**chunk.columns, "batches": ("q", chunk.batches), "time": ("d", chunk.times)}
    if len(chunk.shapes) == 1:
        return (_values(*known[along]), _values(*known[name])) if {along, name} <= known.keys() else ((), ())
    return metric_of(unpack(data), name, along)


def metric_of(reports: Iterable[Report], name: str, along: str) -> tuple[list[Any], list[Any]]:
    """Return the same of reports that are not packed."""
    known = ({**report.values, "batches": report.batches, "time": report.time} for report in reports)
    pairs = [(each[along], each[name]) for each in known if {along, name} <= each.keys()]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _heads(chunk: _Chunk) -> tuple[bytes, bytes, bytes, bytes]:
    return chunk.runs, chunk.batches, chunk.times, chunk.shape


def _column(values: list[Any]) -> tuple[str, bytes]:
    """Return the values in as little as their types allow: doubles, 64-bit integers, or JSON."""
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
    """Return the numbers' first bytes, their second ones, and so on: those of one rank are alike, which compresses well."""
    if sys.byteorder == "big":
        numbers.byteswap()
    whole = numbers.tobytes()
    return b"".join(whole[place::8] for place in range(8))
