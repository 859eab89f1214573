"""Reads the tables of a dump in PostgreSQL's plain format, in order."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from det_core.errors import DetError

from .lines import LongLine, Row, split_row

_QUOTED = rb'(?:"(?:[^"]|"")*"|[^\s."(]+)'
_COPY = re.compile(
    rb"COPY (?:" + _QUOTED + rb"\.)?(?P<table>" + _QUOTED + rb") \((?P<columns>.*)\) FROM stdin;"
)
_NAME = re.compile(rb'"((?:[^"]|"")*)"|([^\s,"]+)')
_FUNCTIONS = (b"CREATE FUNCTION", b"CREATE PROCEDURE")
_END = b"-- PostgreSQL database dump complete"
_INSERT = re.compile(
    rb"INSERT INTO (?:" + _QUOTED + rb"\.)?(?P<table>" + _QUOTED + rb")"
    rb"(?: \((?P<columns>[^)]*)\))?(?: OVERRIDING SYSTEM VALUE)? VALUES\s*"
)
_VALUE = re.compile(
    rb"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<bare>[-+.\w]+))(?:::[\w \[\]\".]+)?\s*(?P<end>[,)])"
)
_CREATE = re.compile(
    rb"CREATE (?:UNLOGGED )?TABLE (?:" + _QUOTED + rb"\.)?(?P<table>" + _QUOTED + rb") \("
)
_COLUMN = re.compile(rb'\s+(?P<name>"(?:[^"]|"")*"|\w+) ')
_NEXT = re.compile(rb"\s*([,;])\s*")
_BODY = re.compile(rb"\bAS (\$\w*\$)")
_NO_COLUMN = (b"CONSTRAINT", b"CHECK", b"PRIMARY", b"UNIQUE", b"EXCLUDE", b"FOREIGN", b"LIKE")
_BARE: dict[bytes, bytes | None] = {b"NULL": None, b"true": b"t", b"false": b"f"}


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
            _skip_function(line, stream.plain(name))
        elif made := _read_created(line, stream.plain(name)):
            columns[_names(made[0])[0]] = tuple(_names(each)[0] for each in made[1])
        if head := _COPY.match(line):
            [table] = _names(head["table"])
            own = _names(head["columns"])
            left: Iterator[Any] = _lines(stream, name, table)
            inside: Iterator[Row] = map(split_row, left)
        elif insert := _read_head(line):
            [table] = _names(insert[0])
            own = columns.get(table, ()) if insert[1] is None else _names(insert[1])
            stream.put_back(line)
            left = inside = _inserted(stream, name, table)
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
        # Skip the rows that the caller has not read, without splitting their lines.
        deque(left, maxlen=0)
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

    def rest(self) -> Iterator[bytes | LongLine]:
        """Return the iterator over the lines that are left, where none was put back."""
        return iter(self) if self._kept else self._lines

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
        head = None if isinstance(line, LongLine) else _read_head(line)
        if isinstance(line, LongLine) or head is None or _names(head[0]) != (table,):
            stream.put_back(line)
            return
        yield from _read_rows(_read_statement(line, stream.plain(name), name), name)


def _lines(stream: _Lines, name: str, table: str) -> Iterator[bytes | LongLine]:
    for line in stream.rest():
        if type(line) is bytes and line[:2] == b"\\." and line.rstrip(b"\r\n") == b"\\.":
            return
        yield line
    raise DetError(f"{name} is cut off in the table {table}; make it again with pg_dump")


def _read_statement(first: bytes, lines: Iterator[bytes], name: str) -> bytes:
    """Return a whole statement, whose strings may have line breaks.

    Raises DetError where the dump ends within it.
    """
    parts, quotes = [first], first.count(b"'")
    # A quote in a string is doubled, so that an odd number of them ends within a string.
    while quotes % 2 or not parts[-1].rstrip().endswith(b";"):
        line = next(lines, None)
        if line is None:
            raise DetError(f"{name} is cut off in an INSERT statement; make it again with pg_dump")
        parts.append(line)
        quotes += line.count(b"'")
    # A terminal, as that of docker exec -t, ends lines with a carriage return.
    text = b"".join(parts)
    return text.replace(b"\r\n", b"\n") if first.endswith(b"\r\n") else text


def _read_head(line: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the table and the columns that an INSERT statement names. None where it is none."""
    found = _INSERT.match(line)
    return (found["table"], found["columns"]) if found else None


def _read_rows(statement: bytes, name: str) -> Iterator[list[bytes | None]]:
    """Yield the rows of an INSERT statement, with values as COPY has them. None is NULL."""
    head = _INSERT.match(statement)
    assert head
    at = head.end()
    while True:
        row: list[bytes | None] = []
        if statement[at : at + 1] != b"(":
            raise _odd(statement, name)
        at, end = at + 1, b","
        while end == b",":
            if (value := _VALUE.match(statement, at)) is None:
                raise _odd(statement, name)
            text, bare, end = value["text"], value["bare"], value["end"]
            row.append(text.replace(b"''", b"'") if text is not None else _BARE.get(bare, bare))
            at = value.end()
        yield row
        # With --rows-per-insert a comma and another row follow.
        if (sign := _NEXT.match(statement, at)) is None:
            raise _odd(statement, name)
        if sign[1] == b";":
            return
        at = sign.end()


def _read_created(first: bytes, lines: Iterator[bytes]) -> tuple[bytes, list[bytes]] | None:
    """Return a table and its columns from a CREATE TABLE statement. None where it is none."""
    if (found := _CREATE.match(first)) is None:
        return None
    columns = []
    for line in lines:
        if line.startswith(b")"):
            break
        column = _COLUMN.match(line)
        if column and not column["name"].startswith(_NO_COLUMN):
            columns.append(column["name"])
    return found["table"], columns


def _skip_function(first: bytes, lines: Iterator[bytes]) -> None:
    """Skip the body of a function, which may look like a statement of the dump."""
    line = first
    while (tag := _BODY.search(line)) is None:
        if line.rstrip().endswith(b";") or not (line := next(lines, b"")):
            return
    if line.count(tag[1]) == 1:
        for line in lines:
            if tag[1] in line:
                return


def _odd(statement: bytes, name: str) -> DetError:
    shown = statement[:60].decode(errors="replace")
    return DetError(f"{name}: cannot read {shown!r}…; make a dump without --inserts")


def _names(text: bytes) -> tuple[str, ...]:
    found = (
        (quoted.replace(b'""', b'"') if quoted else plain) for quoted, plain in _NAME.findall(text)
    )
    return tuple(name.decode(errors="backslashreplace") for name in found)


def place_of(columns: Sequence[str], name: str) -> int | None:
    """Return the index of a column. None where this version of the database has no such column."""
    return columns.index(name) if name in columns else None
