"""Reads the tables of a running server, in one read-only transaction with one snapshot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import click

from det_core.errors import DetError
from det_core.support.installation import how_to_install

from .copies import Block
from .lines import Decoded, Row, split_row

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise DetError(
        "a server is read by psycopg, which is not installed; run:"
        f" {how_to_install('det-migrate', 'postgresql')}"
    ) from error

_MOST = 20_000
"""The most trials that a query names. For more, all rows are read, and the caller leaves out those
of other trials."""
_LONG = 1 << 22
"""The bytes of a value, such as code, that is read in parts: a row is in memory several times."""
_TABLES = """
SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum),
    array_agg(a.attname::text) FILTER (WHERE a.atttypid = 'bytea'::regtype)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = 'public' AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY c.relname
"""


class Server:
    """The database at an address `postgresql://…`. Writers are not blocked, and do not block it."""

    def __init__(self, address: str, ask: Callable[[str], str] | None = None) -> None:
        try:
            facts = conninfo_to_dict(address)
        except psycopg.Error:
            raise DetError(
                "the address of the server cannot be read; give"
                " postgresql://USER@HOST:PORT/DATABASE"
            ) from None
        host = facts.get("host") or "the local server"
        self.name = f"{host}/{facts.get('dbname') or facts.get('user') or ''}"
        self._connection = self._connect(address, ask or _ask)
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True
        for setting in (
            # A large table takes longer than a server may allow a query of a page. These come
            # first, so that none of the others runs into the server's limit.
            "statement_timeout = 0",
            "lock_timeout = 0",
            "idle_in_transaction_session_timeout = 0",
            "DateStyle = 'ISO'",
            "TimeZone = 'UTC'",
            "bytea_output = 'hex'",
            "client_encoding = 'UTF8'",
        ):
            self._connection.execute(f"SET {setting}".encode())
        self._tables: dict[str, list[str]] = {}
        self._bytea: dict[str, list[str]] = {}
        for table, columns, of_bytes in self._connection.execute(_TABLES):
            self._tables[table], self._bytea[table] = columns, of_bytes or []

    def _connect(self, address: str, ask: Callable[[str], str]) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(address)
        except psycopg.OperationalError as error:
            if "no password supplied" not in str(error):
                raise self._unreachable(error) from None
        try:
            return psycopg.connect(address, password=ask(f"password for {self.name}"))
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: psycopg.Error) -> DetError:
        why = str(error).strip().splitlines()[-1]
        return DetError(
            f"cannot reach {self.name}: {why}; see that it runs and lets you in (PGPASSWORD has a"
            " password)"
        )

    def blocks(
        self, wanted: Mapping[str, Sequence[str]], trials: set[int] | None = None
    ) -> Iterator[Block]:
        """Yield the blocks of base tables, never of views.

        Tables with a trial_id have only the rows of `trials`, unless these are more than `_MOST`.
        """
        for table, columns in wanted.items():
            there = self._tables.get(table, [])
            names = tuple(name for name in there if not columns or name in columns)
            if names:
                yield Block(
                    table, names, self._rows(table, names, trials if "trial_id" in there else None)
                )

    def _rows(self, table: str, columns: Sequence[str], trials: set[int] | None) -> Iterator[Row]:
        """Yield the rows of a table, those with long values last."""
        where: sql.Composable = sql.SQL("")
        if trials is not None and len(trials) <= _MOST:
            where = sql.SQL("WHERE trial_id = ANY ({})").format(sql.Literal(sorted(trials)))
        long = [name for name in columns if name in self._bytea.get(table, ())]
        try:
            if not long:
                yield from self._copy(table, map(sql.Identifier, columns), where)
                return
            values = [_short(name) if name in long else sql.Identifier(name) for name in columns]
            is_long = sql.SQL(" OR ").join(map(_is_long, long))
            place = sql.SQL("CASE WHEN {} THEN ctid::text END").format(is_long)
            places: list[bytes] = []
            for *row, at in self._copy(table, [*values, place], where):
                if at is None:
                    yield row
                else:
                    places.append(at)
            for at in places:
                where = sql.SQL("WHERE ctid = {}::tid").format(sql.Literal(at.decode()))
                # Whole, as the connection has one query at a time.
                for row in [*self._copy(table, values, where)]:
                    yield [
                        (field or self._read_long(table, name, where)) if name in long else field
                        for name, field in zip(columns, row, strict=True)
                    ]
        except psycopg.Error as error:
            with suppress(psycopg.Error):
                self._connection.close()
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DetError(f"cannot read the table {table} of {self.name}: {why}") from None

    def _copy(
        self, table: str, values: Iterable[sql.Composable], where: sql.Composable
    ) -> Iterator[Row]:
        query = sql.SQL("COPY (SELECT {} FROM public.{} {}) TO STDOUT").format(
            sql.SQL(", ").join(values), sql.Identifier(table), where
        )
        left = b""
        with self._connection.cursor().copy(query) as copy:
            for part in copy:
                *lines, left = (left + bytes(part)).split(b"\n")
                yield from map(split_row, lines)

    def _read_long(self, table: str, column: str, where: sql.Composable) -> bytes | None:
        """Read a value of a row in parts. None if it is NULL."""
        query = sql.SQL("SELECT substring({} FROM %s FOR %s) FROM public.{} {}").format(
            sql.Identifier(column), sql.Identifier(table), where
        )
        found = Decoded()
        while True:
            row = self._connection.execute(query, (len(found) + 1, _LONG), binary=True).fetchone()
            if row is None or row[0] is None:
                return None
            found += row[0]
            if len(row[0]) < _LONG:
                # Whoever reads a bytea column may get a bytearray.
                return cast("bytes", found)


def _is_long(column: str) -> sql.Composed:
    return sql.SQL("coalesce(octet_length({}) > {}, false)").format(
        sql.Identifier(column), sql.Literal(_LONG)
    )


def _short(column: str) -> sql.Composed:
    return sql.SQL("CASE WHEN NOT {} THEN {} END").format(_is_long(column), sql.Identifier(column))


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise DetError(f"there is no {prompt}; set PGPASSWORD")
    return str(click.prompt(prompt, hide_input=True, err=True))
