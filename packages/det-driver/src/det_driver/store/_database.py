"""One connection to the file: opening, migrating, transactions, and SQLite's errors as sentences."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from det_core.errors import StoreError, StoreUnwritable
from det_driver.store._file import keep_private, use_journal
from det_driver.store._memory import Memory

BUSY_SECONDS = 30.0

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]


class Database(AbstractContextManager[None]):
    """A connection for one thread of one process; its statements are atomic, alone or grouped by `transaction`.

    `id` is the experiment's, where it is one's; a writer waits at most `patience` seconds for another. What is `put` in a
    transaction is written when something is read, or at its end: so a part of it that writes nothing else needs no
    savepoint, which costs as much as what is in it.
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
        self.memory = Memory()
        """What its only writer knows of it; nothing, whenever something was undone."""
        self._patience = BUSY_SECONDS if patience is None else patience
        self._pid = os.getpid()
        self._depth = 0
        self._put: list[tuple[str, Parameters]] = []
        self._parts: list[int | None] = []  # how much was put when each began, None where it is a savepoint by now
        self._afterwards: list[Callable[[], None]] = []
        self._followed: list[int] = []  # how many of those there were when each transaction began
        self._once: dict[str, Row] = {}
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
            keep_private(self.path)
        place = f"{self.path.as_uri()}?{self._read_mode() if self.readonly else 'mode=rwc'}"
        return sqlite3.connect(place, uri=True, timeout=self._patience, isolation_level=None)

    def _set_up(self) -> None:
        if self.readonly:
            self._connection.execute("PRAGMA query_only = ON")
            return
        use_journal(self._connection, self.path, BUSY_SECONDS)
        self._connection.execute("PRAGMA journal_size_limit = 67108864")
        # Pages that are written again and again reach the file more rarely, and those of a large search stay in memory.
        self._connection.execute("PRAGMA wal_autocheckpoint = 4000")
        self._connection.execute("PRAGMA cache_size = -16384")
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

    def put(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Write something of which nothing is to be known, with the rest of the transaction; SQLite must take the values."""
        if self._depth:
            self._put.append((sql, parameters))
        else:
            self.run(sql, parameters)

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows at once: a half-read cursor would hold a snapshot, and a stale snapshot cannot write."""
        return self._execute(sql, parameters)[1]

    def _execute(self, sql: str, parameters: Parameters) -> tuple[int, list[Row]]:
        if self._put or self._parts:
            self._write_out(reads=sql.lstrip().startswith("SELECT"))
        return self._do(sql, parameters)

    def _write_out(self, *, reads: bool) -> None:
        """Write what was put, and make savepoints of the parts in which something is written."""
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
        except sqlite3.Error as error:  # nobody is left who could take it back alone
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise StoreUnwritable(str(self._explain(error))) from error

    def _do(self, sql: str, parameters: Parameters = ()) -> tuple[int, list[Row]]:
        # Constraint errors stay `sqlite3.IntegrityError`, for the caller to put into words.
        self._check()
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

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self.path} was opened by process {self._pid}; open it anew in this one")
        if self._depth and not self._connection.in_transaction:
            raise StoreUnwritable(f"{self.path}: an error has undone this transaction; nothing of it was written")

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def once(self, sql: str) -> Row:
        """The first row of what never changes, which is asked once."""
        if sql not in self._once:
            self._once[sql] = self.rows(sql)[0]
        return self._once[sql]

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing; one inside another undoes only itself. A reader's transaction is one snapshot."""
        return self

    @property
    def joined(self) -> AbstractContextManager[None]:
        """The transaction that is open, whose owner undoes it if this fails, or else one of its own."""
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
        # A full disk makes SQLite roll back by itself, and then there is nothing left to undo.
        if mark is None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK TO part" if self._depth else "ROLLBACK")
            if self._depth:
                self._connection.execute("RELEASE part")

    def afterwards(self, act: Callable[[], None]) -> None:
        """Do it when the transaction has been committed, or now where there is none; never when it is undone."""
        self._afterwards.append(act) if self._depth else act()

    def close(self) -> None:
        """Give the file back; closing twice is harmless."""
        self._connection.close()

    def _explain(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0)
        code = code if code in _SENTENCES else code & 0xFF  # the rest mostly says more than a sentence needs
        if code == sqlite3.SQLITE_READONLY and self.readonly:
            return StoreError(f"{self.path} was opened for reading only; open a Store to change it")
        kind = StoreUnwritable if code in _SENTENCES else StoreError
        return kind(_SENTENCES.get(code, "{path}: {error}").format(path=self.path, error=error))


_JOINED = nullcontext()
_SENTENCES = {
    sqlite3.SQLITE_FULL: "{path}: the disk is full; nothing of the last change was written; free some space",
    sqlite3.SQLITE_IOERR_SHMSIZE: "{path} needs some room beside it: the disk is full, or has failed; free some space",
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
