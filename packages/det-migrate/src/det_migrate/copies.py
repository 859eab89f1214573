"""Reads the tables of a dump in PostgreSQL's plain format, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from det_core.errors import DetError

from .inserts import QUOTED, read_created, read_head, read_rows, read_statement, skip_function
from .lines import LongLine, Row, split_row

_HEAD = re.compile(
    rb"COPY (?:" + QUOTED + rb"\.)?(?P<table>" + QUOTED + rb") \((?P<columns>.*)\) FROM stdin;"
)
_NAME = re.compile(rb'"((?:[^"]|"")*)"|([^\s,"]+)')
_FUNCTIONS = (b"CREATE FUNCTION", b"CREATE PROCEDURE")
_END = b"-- PostgreSQL database dump complete"


class Block(NamedTuple):
    """The rows of one table, which are read from the dump while they are iterated over.

    The order of the values in a row is that of `columns`.
    """

    table: str
    columns: tuple[str, ...]
    rows: Iterator[Row]


def read_tables(
    lines: Iterable[bytes | LongLine], wanted: Mapping[str, object], name: str
) -> Iterator[Block]:
    """Yield the blocks of the wanted tables, in the order of the dump.

    A block has the rows of COPY, or of the INSERT statements that follow one another. Raises
    DetError where the dump is cut off, or has a wanted table twice.
    """
    table, complete, stream = "", False, _Lines(lines)
    found: set[str] = set()
    columns: dict[str, tuple[str, ...]] = {}
    for line in stream:
        if isinstance(line, LongLine) or not line.startswith(
            (b"COPY ", b"INSERT ", b"CREATE ", b"-- PostgreSQL")
        ):
            continue
        complete = complete or line.startswith(_END)
        if line.startswith(_FUNCTIONS):
            skip_function(line, stream.plain(name))
        elif made := read_created(line, stream.plain(name)):
            columns[_names(made[0])[0]] = tuple(_names(each)[0] for each in made[1])
        if head := _HEAD.match(line):
            [table] = _names(head["table"])
            own = _names(head["columns"])
            inside: Iterator[Row] = map(split_row, _lines(stream, name, table))
        elif insert := read_head(line):
            [table] = _names(insert[0])
            own = columns.get(table, ()) if insert[1] is None else _names(insert[1])
            stream.put_back(line)
            inside = _inserted(stream, name, table)
        else:
            continue
        if table in wanted:
            if table in found:
                raise DetError(
                    f"{name} holds the table {table} twice, as the dump of a server with several"
                    " databases does; make one of the master's database alone with pg_dump, or"
                    " keep only the part after its \\connect"
                )
            if not own:
                raise DetError(
                    f"{name} does not say the columns of {table}; make a dump without --data-only,"
                    " or with --column-inserts"
                )
            found.add(table)
            yield Block(table, own, inside)
        # Skip the rows that the caller has not read.
        for _ in inside:
            pass
    if not complete:
        after = f"after the table {table}" if table else "before the first table"
        raise DetError(
            f"{name} is cut off {after}, or is no dump in PostgreSQL's plain format; make it again"
            " with pg_dump"
        )


class _Lines(Iterator[bytes | LongLine]):
    """Iterates over the lines of a dump. A line that was read can be put back."""

    def __init__(self, lines: Iterable[bytes | LongLine]) -> None:
        self._lines = iter(lines)
        self._kept: list[bytes | LongLine] = []

    def __next__(self) -> bytes | LongLine:
        return self._kept.pop() if self._kept else next(self._lines)

    def plain(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a statement that is no COPY. Raises DetError for too long a line."""
        for line in self:
            if isinstance(line, LongLine):
                raise DetError(f"{name} has a statement with several long lines; make it by COPY")
            yield line

    def put_back(self, line: bytes | LongLine) -> None:
        """Give this line again next."""
        self._kept.append(line)


def _inserted(stream: _Lines, name: str, table: str) -> Iterator[Row]:
    """Yield the rows of INSERT statements until one of another table, or something else, comes."""
    for line in stream:
        head = None if isinstance(line, LongLine) else read_head(line)
        if isinstance(line, LongLine) or head is None or _names(head[0]) != (table,):
            stream.put_back(line)
            return
        yield from read_rows(read_statement(line, stream.plain(name), name), name)


def _lines(stream: _Lines, name: str, table: str) -> Iterator[bytes | LongLine]:
    for line in stream:
        if not isinstance(line, LongLine) and line.rstrip(b"\r\n") == b"\\.":
            return
        yield line
    raise DetError(f"{name} is cut off in the table {table}; make it again with pg_dump")


def _names(text: bytes) -> tuple[str, ...]:
    found = (
        (quoted.replace(b'""', b'"') if quoted else plain) for quoted, plain in _NAME.findall(text)
    )
    return tuple(name.decode(errors="backslashreplace") for name in found)


def place_of(columns: Sequence[str], name: str) -> int | None:
    """Return the index of a column. None where this version of the database has no such column."""
    return columns.index(name) if name in columns else None
