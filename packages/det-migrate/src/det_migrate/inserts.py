"""Reads the rows of INSERT statements, which pg_dump writes with --inserts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from det_core.errors import DetError

QUOTED = rb'(?:"(?:[^"]|"")*"|[^\s."(]+)'
_HEAD = re.compile(
    rb"INSERT INTO (?:" + QUOTED + rb"\.)?(?P<table>" + QUOTED + rb")"
    rb"(?: \((?P<columns>[^)]*)\))?(?: OVERRIDING SYSTEM VALUE)? VALUES\s*"
)
_VALUE = re.compile(
    rb"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<bare>[-+.\w]+))(?:::[\w \[\]\".]+)?\s*(?P<end>[,)])"
)
_CREATE = re.compile(
    rb"CREATE (?:UNLOGGED )?TABLE (?:" + QUOTED + rb"\.)?(?P<table>" + QUOTED + rb") \("
)
_COLUMN = re.compile(rb'\s+(?P<name>"(?:[^"]|"")*"|\w+) ')
_NEXT = re.compile(rb"\s*([,;])\s*")
_BODY = re.compile(rb"\bAS (\$\w*\$)")
_NO_COLUMN = (b"CONSTRAINT", b"CHECK", b"PRIMARY", b"UNIQUE", b"EXCLUDE", b"FOREIGN", b"LIKE")
_BARE: dict[bytes, bytes | None] = {b"NULL": None, b"true": b"t", b"false": b"f"}


def read_statement(first: bytes, lines: Iterator[bytes], name: str) -> bytes:
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


def read_head(line: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the table and the columns that an INSERT statement names. None where it is none."""
    found = _HEAD.match(line)
    return (found["table"], found["columns"]) if found else None


def read_rows(statement: bytes, name: str) -> Iterator[list[bytes | None]]:
    """Yield the rows of an INSERT statement, with values as COPY has them. None is NULL."""
    head = _HEAD.match(statement)
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


def read_created(first: bytes, lines: Iterator[bytes]) -> tuple[bytes, list[bytes]] | None:
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


def skip_function(first: bytes, lines: Iterator[bytes]) -> None:
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
