"""One connection to a database file: opening, migrations, transactions and error messages."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

from det_core.errors import StoreError, StoreUnwritable
from det_driver.store._file import keep_private, use_journal
from det_driver.store._memory import Memory
from det_driver.store._schema import UNREADABLE, convert

BUSY_SECONDS = 30.0

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]
Flag = Literal[0, 1]
Migrations = Sequence[Sequence[str]]
"""The statements that make each version of the tables from the one before."""
_FORMAT, _WAL_FORMAT = slice(18, 20), b"\x02\x02"
"""The bytes of a database file that say how it is written, and those of a write-ahead log.

https://www.sqlite.org/fileformat.html, section 1.3.3
"""


def write_new(
    path: Path,
    migrations: tuple[tuple[str, ...], ...],
    sql: str,
    parameters: Parameters,
    *,
    shared: bool,
) -> None:
    """Write a new database file with the result of one statement, readable for its owner only.

    The database is composed in memory. So its file is written and synced once, and no journal is
    written next to it. `shared` is whether several machines use the file.

    Raises StoreError if the file cannot be written.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(_empty(migrations))
        connection.execute(sql, parameters)
        content = bytearray(connection.serialize())
    if not shared:
        content[_FORMAT] = _WAL_FORMAT
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        sentence = _SENTENCES[sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_CANTOPEN]
        raise StoreUnwritable(sentence.format(path=path, error=error.strerror)) from error


@cache
def _empty(migrations: tuple[tuple[str, ...], ...]) -> bytes:
    """Return a database with the tables and no rows."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _migrate(connection, migrations, 0)
        return connection.serialize()


def _migrate(connection: sqlite3.Connection, migrations: Migrations, version: int) -> None:
    for number in range(version, len(migrations)):
        for statement in migrations[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")


class Database(AbstractContextManager[None]):
    """A connection for one thread of one process.

    Its statements are atomic, alone or in a `transaction`.

    `id` is the number of the experiment if the file is an experiment's. A writer waits at most
    `patience` seconds for another writer. `put` defers a statement to the next read or to the end
    of the transaction. So an inner transaction that only puts needs no savepoint, which would cost
    as much as its statements.
    """

    def __init__(
        self,
        path: Path,
        migrations: Migrations,
        *,
        readonly: bool = False,
        id: int = 0,
        patience: float | None = None,
    ) -> None:
        self.path = path
        self.readonly = readonly
        self.id = id
        # A value that cannot be read costs the experiment at most, and never the home.
        self._unit = path.parent if id else path
        self.memory = Memory()
        """What the only writer has cached. It is cleared when a transaction is undone."""
        self._patience = BUSY_SECONDS if patience is None else patience
        self._pid = os.getpid()
        self._depth = 0
        self._put: list[tuple[str, Parameters]] = []
        # For each inner transaction the length of `_put` at its start, or None for a savepoint.
        self._parts: list[int | None] = []
        self._afterwards: list[Callable[[], None]] = []
        # For each transaction the length of `_afterwards` at its start.
        self._followed: list[int] = []
        self._once: dict[str, Row] = {}
        try:
            self._connection = self._connect()
            with ExitStack() as undo:
                undo.callback(self._connection.close)
                # Check first: a newer store must not be changed.
                self._check_version(migrations)
                self._set_up()
                self._migrate(migrations)
                undo.pop_all()
        except _BROKEN as error:
            raise self._explain(error) from error

    def _connect(self) -> sqlite3.Connection:
        if not self.readonly:
            keep_private(self.path)
        place = f"{self.path.as_uri()}?{self._read_mode() if self.readonly else 'mode=rwc'}"
        return sqlite3.connect(place, uri=True, timeout=self._patience, isolation_level=None)

    def _set_up(self) -> None:
        if self.readonly:
            self._connection.execute("PRAGMA query_only = ON")
            return
        use_journal(self._connection, self.path, BUSY_SECONDS)
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        # Write pages that change often to the file less often, and keep a large search in memory.
        self._connection.execute("PRAGMA wal_autocheckpoint = 4000")
        self._connection.execute("PRAGMA cache_size = -16384")
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _read_mode(self) -> str:
        # Reading a WAL needs its shared-memory file, and so write access to the directory. On a
        # read-only disk nobody writes, and a store that was closed properly has no WAL. The file
        # is complete then.
        if self._writable():
            return "mode=rw"
        return "mode=ro" if Path(f"{self.path}-wal").exists() else "mode=ro&immutable=1"

    def _writable(self) -> bool:
        return os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK)

    def _migrate(self, migrations: Migrations) -> None:
        version = self._check_version(migrations)
        if version == len(migrations):
            return
        if not self.readonly:
            with self.transaction():
                # Another process may have migrated the file while this one waited for the lock.
                _migrate(self._connection, migrations, self._version())
        elif not version:
            # A process that makes the file creates all tables in one transaction.
            raise StoreError(
                f"{self.path} is empty; restore it from a copy, or remove {self._unit}"
            )
        elif self._writable():
            Database(self.path, migrations).close()
        else:
            raise StoreError(
                f"{self.path} has schema version {version}, and this det reads version"
                f" {len(migrations)}; open it once where it can be written"
            )

    def _check_version(self, migrations: Migrations) -> int:
        version = self._version()
        if version > len(migrations):
            raise StoreError(
                f"{self.path} has schema version {version}, newer than the {len(migrations)} that"
                " this det knows; upgrade det-driver"
            )
        return version

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute one statement, and return how many rows it changed."""
        return self._execute(sql, parameters)[0]

    def put(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Write something whose result is not needed, with the rest of the transaction.

        SQLite must accept the values.
        """
        if self._depth:
            self._put.append((sql, parameters))
        else:
            self.run(sql, parameters)

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows at once.

        A half-read cursor would hold a snapshot, and a connection with a stale snapshot cannot
        write.
        """
        return self._execute(sql, parameters)[1]

    def typed(self, kind: Any, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return all rows, each of a type such as `tuple[int, str]`.

        Raises StoreError for values of other types, as SQLite accepts any value in any column.
        """
        rows = self.rows(sql, parameters)
        with self.decoding():
            found: list[Any] = convert(rows, list[kind])
        return found

    def _execute(self, sql: str, parameters: Parameters) -> tuple[int, list[Row]]:
        if self._put or self._parts:
            self._write_out(reads=sql.lstrip().startswith("SELECT"))
        return self._do(sql, parameters)

    def _write_out(self, *, reads: bool) -> None:
        """Write the deferred statements, and make savepoints of inner transactions that write."""
        put, self._put = self._put, []
        if put:
            self._check()
        done, write = 0, self._connection.cursor().execute
        try:
            for number, mark in enumerate(self._parts):
                if mark is not None:
                    for sql, parameters in put[done:mark]:
                        write(sql, parameters)
                    done = mark
                    if reads and mark == len(put):
                        self._parts[number] = 0
                    else:
                        write("SAVEPOINT part")
                        self._parts[number] = None
            for sql, parameters in put[done:]:
                write(sql, parameters)
        except _BROKEN as error:
            # The inner transaction that put the statement may have ended, so undo the whole one.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise StoreUnwritable(str(self._explain(error))) from error

    def _do(self, sql: str, parameters: Parameters = ()) -> tuple[int, list[Row]]:
        # Constraint errors stay `sqlite3.IntegrityError`. The caller explains them.
        self._check()
        try:
            cursor = self._connection.execute(sql, parameters)
            rows = cursor.fetchall()
            return cursor.rowcount, rows
        except sqlite3.IntegrityError:
            raise
        except OverflowError as error:
            raise StoreError(
                "a number of an experiment or trial has at most 18 digits; det list shows them"
            ) from error
        except _BROKEN as error:
            raise self._explain(error) from error

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the store {self.path} was opened by process {self._pid}; open it again in this"
                " one"
            )
        if self._depth and not self._connection.in_transaction:
            raise StoreUnwritable(
                f"{self.path}: an error has undone this transaction; nothing of it was written"
            )

    @property
    def changes(self) -> int:
        """The number of rows that this connection has changed."""
        return self._connection.total_changes

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Return the first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def once(self, sql: str) -> Row:
        """Return the first row of a query whose result never changes. It is queried once."""
        if sql not in self._once:
            self._once[sql] = self.rows(sql)[0]
        return self._once[sql]

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context whose changes are committed together or undone together.

        A transaction inside another one undoes only its own changes. A reader's transaction is one
        snapshot.
        """
        return self

    @property
    def joined(self) -> AbstractContextManager[None]:
        """The open transaction, whose owner undoes it if this part fails, or else a new one."""
        return _JOINED if self._depth else self

    def __enter__(self) -> None:
        if self._depth:
            self._parts.append(len(self._put))
        else:
            self._do("BEGIN" if self.readonly else "BEGIN IMMEDIATE")
        self._depth += 1
        self._followed.append(len(self._afterwards))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        good = False
        try:
            if kind is None and self._depth == 1:
                self._write_out(reads=False)
                self._do("COMMIT")
            elif kind is None and self._parts[-1] is None:
                self._do("RELEASE part")
            good = kind is None
        finally:
            self._depth -= 1
            mark, before = self._parts.pop() if self._depth else None, self._followed.pop()
            if not good:
                del self._afterwards[before:]
                self.memory = Memory()
                self._undo(mark)
        if not self._depth:
            afterwards, self._afterwards = self._afterwards, []
            for act in afterwards:
                act()

    def _undo(self, mark: int | None) -> None:
        del self._put[mark or 0 :]
        # On a full disk SQLite rolls back by itself, and nothing is left to undo.
        if mark is None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK TO part" if self._depth else "ROLLBACK")
            if self._depth:
                self._connection.execute("RELEASE part")

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Turn errors in decoding the values of rows into a StoreError that names the file."""
        try:
            yield
        except UNREADABLE as error:
            raise StoreError(
                f"{self.path} holds a value that cannot be read ({error}); restore it from a copy,"
                f" or remove {self._unit}"
            ) from error

    def afterwards(self, act: Callable[[], None]) -> None:
        """Call `act` after the transaction is committed, or now if no transaction is open.

        It is never called if the transaction is undone.
        """
        self._afterwards.append(act) if self._depth else act()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._connection.close()

    def _explain(self, error: Exception) -> StoreError:
        code = _code(error)
        # The upper bits of an extended code rarely matter for the message.
        code = code if code in _SENTENCES else code & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and not self.readonly:
            code = _why_no_file(self.path.parent) or code
        if code == sqlite3.SQLITE_READONLY and self.readonly:
            return StoreError(f"{self.path} was opened for reading only; open a Store to change it")
        kind = StoreUnwritable if code in _SENTENCES else StoreError
        return kind(_SENTENCES.get(code, "{path}: {error}").format(path=self.path, error=error))


def _why_no_file(directory: Path) -> int:
    """Return SQLite's code for why no file can be made in a directory, or 0.

    SQLite itself reports only that it cannot open the file.
    """
    # Slow to import, as it imports every compressor.
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"det")
    except OSError as error:
        codes = {
            errno.ENOSPC: sqlite3.SQLITE_FULL,
            errno.EDQUOT: sqlite3.SQLITE_FULL,
            errno.EIO: sqlite3.SQLITE_IOERR,
        }
        return codes.get(error.errno or 0, 0)
    return 0


_JOINED = nullcontext()
_BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""The errors of a damaged or unusable file.

UnicodeDecodeError occurs if SQLite's message quotes bytes that are no text, as of a damaged schema.
"""
_SENTENCES = {
    sqlite3.SQLITE_FULL: (
        "{path}: the disk is full; nothing of the last change was written; free some space"
    ),
    sqlite3.SQLITE_IOERR_SHMSIZE: (
        "{path} needs some room beside it: the disk is full, or has failed; free some space"
    ),
    sqlite3.SQLITE_READONLY: (
        "{path} cannot be written: it is read-only here; choose a home that you can write to"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "{path} is damaged ({error}); restore it from a copy, or move it away to begin again"
    ),
    sqlite3.SQLITE_NOTADB: (
        "{path} is not a store of det ({error}); move it away, or choose another home"
    ),
    sqlite3.SQLITE_BUSY: "{path} has been locked by another process for too long; try again later",
    sqlite3.SQLITE_CANTOPEN: (
        "{path} cannot be opened ({error}); choose a home that you can read and write"
    ),
    sqlite3.SQLITE_IOERR: (
        "{path}: the disk failed ({error}); nothing of the last change was written"
    ),
}


def damaged(error: StoreError) -> bool:
    """Return whether the file itself is damaged, so that a retry is useless."""
    return _code(error.__cause__) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: BaseException | None) -> int:
    return (
        sqlite3.SQLITE_CORRUPT
        if isinstance(error, UnicodeDecodeError)
        else getattr(error, "sqlite_errorcode", 0)
    )
