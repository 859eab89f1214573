"""The lines of a dump, and the fields of COPY's text format."""

from __future__ import annotations

import re
from binascii import hexlify, unhexlify
from collections.abc import Iterator
from typing import Protocol, cast


class Decoded(bytearray):
    """The bytes of a bytea column, which are decoded already."""


Row = list[bytes | None]
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_SIGNS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_LONG = 1 << 22
"""The bytes of a line that is read in parts."""
_HEX = b"\\\\x"
"""How a bytea column in hexadecimal begins, with COPY's escape."""


class Readable(Protocol):
    """A binary file."""

    def readline(self, size: int = -1, /) -> bytes:
        """Return the next line, or so many bytes of it."""
        ...


class LongLine:
    """A line of COPY's text format too long to be kept with its copies, such as one with code.

    Its fields are read while it is read. Long ones in the hexadecimal format of bytea columns are
    decoded on the way.
    """

    def __init__(self, first: bytes, stream: Readable) -> None:
        self.fields: Row = []
        self._field = bytearray()
        self._decoded: Decoded | None = None
        self._left = b""
        self._is_text = False
        part = first
        while part:
            *ended, open_ = part.rstrip(b"\r\n").split(b"\t")
            for field in ended:
                self._add(field)
                self._end()
            self._add(open_)
            if part.endswith(b"\n"):
                break
            if not self._is_text and self._field.startswith(_HEX):
                begun = bytes(self._field[len(_HEX) :])
                self._field.clear()
                self._decoded = Decoded()
                self._add(begun)
            part = stream.readline(_LONG)
        self._end()

    def _add(self, part: bytes) -> None:
        """Add a part of a field."""
        if self._decoded is None:
            self._field += part
            return
        part = self._left + part
        even = len(part) // 2 * 2
        try:
            self._decoded += unhexlify(part[:even])
            self._left = part[even:]
        except ValueError:
            # It is a text that begins as bytes do.
            self._is_text = True
            self._field += _HEX + hexlify(self._decoded) + part
            self._decoded, self._left = None, b""

    def _end(self) -> None:
        """Take what was added as a field."""
        if self._decoded is not None:
            # Whoever reads a bytea column may get a bytearray.
            self.fields.append(cast("bytes", self._decoded))
        else:
            self.fields += split_row(bytes(self._field))
        self._field, self._decoded, self._left = bytearray(), None, b""
        self._is_text = False


def read_lines(stream: Readable) -> Iterator[bytes | LongLine]:
    """Yield the lines of a dump, in bounded memory."""
    while line := stream.readline(_LONG):
        if len(line) < _LONG or line.endswith(b"\n"):
            yield line
        elif line.startswith(b"INSERT "):
            yield line + stream.readline()
        else:
            yield LongLine(line, stream)


def split_row(line: bytes | LongLine) -> Row:
    """Return the fields of a line of COPY's text format, without their escapes. None is NULL."""
    if isinstance(line, LongLine):
        return line.fields
    # A terminal, as that of docker exec -t, ends lines with a carriage return. COPY escapes those
    # of values.
    fields = line.rstrip(b"\r\n").split(b"\t")
    if b"\\" not in line:
        return list(fields)
    return [_value(field) if b"\\" in field else field for field in fields]


def _value(field: bytes) -> bytes | None:
    """Return a field with escapes without them. None is NULL."""
    if field == b"\\N":
        return None
    # A bytea column in hexadecimal has no other escape.
    if field.startswith(_HEX) and field.rfind(b"\\") == 1:
        return field[1:]
    return _ESCAPE.sub(_unescape, field)


def _unescape(match: re.Match[bytes]) -> bytes:
    sign = match[1]
    if sign[:1] == b"x" and len(sign) > 1:
        return bytes([int(sign[1:], 16)])
    return (
        bytes([int(sign, 8) & 0xFF])
        if sign.isdigit() and max(sign) < ord("8")
        else _SIGNS.get(sign, sign)
    )


def read_bytea(field: bytes | Decoded) -> bytes | Decoded:
    """Return the bytes of a bytea column, in either of the formats that servers write."""
    if isinstance(field, Decoded):
        return field
    if field[:2] == b"\\x":
        return unhexlify(field[2:])
    return _ESCAPE.sub(lambda m: bytes([int(m[1], 8)]) if m[1].isdigit() else m[1], field)
