"""One connection to the file: opening, migrating, transactions, and SQLite's errors as sentences."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from det_core.errors import StoreError, StoreUnwritable

BUSY_SECONDS = 30.0

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]


class Database:
    """A connection for one thread of one process; its statements are atomic, alone or grouped by `transaction`.

    `id` is the experiment's, where it is one's; a writer waits at most `patience` seconds for another.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Sequence[str]],
        *,
        readonly: bool = False,
        id: int = 0,
        patience: float | None = None,
    ) -> None:
        self.path = path
        self.readonly = readonly
        self.id = id
        self._patience = BUSY_SECONDS if patience is None else patience
        self._pid = os.getpid()
        self._depth = 0
        self._afterwards: list[Callable[[], None]] = []
        try:
            self._connection = self._connect()
            with ExitStack() as undo:
                undo.callback(self._connection.close)
                self._check_version(migrations)  # before anything of a newer store is changed
                self._set_up()
                self._migrate(migrations)
                undo.pop_all()
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def _connect(self) -> sqlite3.Connection:
        if not self.readonly:
            _keep_private(self.path)
        place = f"{self.path.as_uri()}?{self._read_mode() if self.readonly else 'mode=rwc'}"
        return sqlite3.connect(place, uri=True, timeout=self._patience, isolation_level=None)

    def _set_up(self) -> None:
        if self.readonly:
            self._connection.execute("PRAGMA query_only = ON")
            return
        _use_wal(self._connection)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _read_mode(self) -> str:
        # Reading a WAL needs its shared-memory file, hence write access to the directory; on a read-only disk
        # nobody writes, and a store that was closed properly has no WAL, so the file alone is the truth.
        if self._writable():
            return "mode=rw"
        return "mode=ro" if Path(f"{self.path}-wal").exists() else "mode=ro&immutable=1"

    def _writable(self) -> bool:
        return os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK)

    def _migrate(self, migrations: Sequence[Sequence[str]]) -> None:
        version = self._check_version(migrations)
        if version == len(migrations):
            return
        if not self.readonly:
            with self.transaction():
                # Another process may have taken the steps while this one waited for its turn to write.
                for number in range(self._version(), len(migrations)):
                    for statement in migrations[number]:
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {number + 1}")
        elif self._writable():
            Database(self.path, migrations).close()
        else:
            raise StoreError(
                f"{self.path} has schema version {version}, and this det reads version {len(migrations)}; "
                "open it once where it can be written"
            )

    def _check_version(self, migrations: Sequence[Sequence[str]]) -> int:
        version = self._version()
        if version > len(migrations):
            raise StoreError(
                f"{self.path} has schema version {version}, newer than the {len(migrations)} that this det knows; "
                "upgrade det-driver"
            )
        return version

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute one statement, and return how many rows it changed."""
        return self._execute(sql, parameters)[0]

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows at once: a half-read cursor would hold a snapshot, and a stale snapshot cannot write."""
        return self._execute(sql, parameters)[1]

    def _execute(self, sql: str, parameters: Parameters) -> tuple[int, list[Row]]:
        # Constraint errors stay `sqlite3.IntegrityError`, for the caller to put into words.
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self.path} was opened by process {self._pid}; open it anew in this one")
        if self._depth and not self._connection.in_transaction:
            raise StoreUnwritable(f"{self.path}: an error has undone this transaction; nothing of it was written")
        try:
            cursor = self._connection.execute(sql, parameters)
            rows = cursor.fetchall()
            return cursor.rowcount, rows
        except sqlite3.IntegrityError:
            raise
        except OverflowError as error:
            raise StoreError("a number of an experiment or trial has at most 18 digits; det list shows them") from error
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; one inside another undoes only itself. A reader's transaction is one snapshot."""
        part = self._depth > 0
        before = len(self._afterwards)
        self.run("SAVEPOINT part" if part else "BEGIN" if self.readonly else "BEGIN IMMEDIATE")
        self._depth += 1
        try:
            yield
            self.run("RELEASE part" if part else "COMMIT")
        except BaseException:
            del self._afterwards[before:]
            # A full disk makes SQLite roll back by itself, and then there is nothing left to undo.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part" if part else "ROLLBACK")
                if part:
                    self._connection.execute("RELEASE part")
            raise
        finally:
            self._depth -= 1
        if not self._depth:
            afterwards, self._afterwards = self._afterwards, []
            for act in afterwards:
                act()

    def afterwards(self, act: Callable[[], None]) -> None:
        """Do it when the transaction has been committed, or now where there is none; never when it is undone."""
        self._afterwards.append(act) if self._depth else act()

    def close(self) -> None:
        """Give the file back; closing twice is harmless."""
        self._connection.close()

    def _explain(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more than a sentence needs
        if code == sqlite3.SQLITE_READONLY and self.readonly:
            return StoreError(f"{self.path} was opened for reading only; open a Store to change it")
        kind = StoreUnwritable if code in _SENTENCES else StoreError
        return kind(_SENTENCES.get(code, "{path}: {error}").format(path=self.path, error=error))


_SENTENCES = {
    sqlite3.SQLITE_FULL: "{path}: the disk is full; nothing of the last change was written; free some space",
    sqlite3.SQLITE_READONLY: "{path} cannot be written: it is read-only here; choose a home that you can write to",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged ({error}); restore it from a copy, or move it away to begin anew",
    sqlite3.SQLITE_NOTADB: "{path} is not a store of det ({error}); move it away, or choose another home",
    sqlite3.SQLITE_BUSY: "{path} has been locked by another process for too long; try again later",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened ({error}); choose a home that you can read and write",
    sqlite3.SQLITE_IOERR: "{path}: the disk failed ({error}); nothing of the last change was written",
}


def damaged(error: StoreError) -> bool:
    """Tell whether the file itself is at fault, so that asking again will not help."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _keep_private(path: Path) -> None:
    """Let nobody else read the file, which may be made here; SQLite gives its other files the same rights."""
    with suppress(OSError):  # SQLite says what is wrong with the place
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_mode & 0o077:
                for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                    with suppress(FileNotFoundError):
                        each.chmod(0o600)
        finally:
            os.close(file)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a fresh file to WAL: SQLite does not wait for others there, so wait here."""
    deadline = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
