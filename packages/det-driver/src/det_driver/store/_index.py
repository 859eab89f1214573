"""The index of a home: the summaries for `det list`, the assigned numbers and the device leases.

All of it can be rebuilt.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from det_core.errors import StoreError
from det_driver.store._database import Database, Row, damaged
from det_driver.store._file import list_sidecars
from det_driver.store._locks import GUARD
from det_driver.store._records import ExperimentSummary
from det_driver.store._schema import INDEX, dump

T = TypeVar("T")
Entry = tuple[int, ExperimentSummary | None, list[Row]]
"""An experiment's number, its summary (None if unreadable), and its blocks of trial numbers."""

PATIENCE_SECONDS = 0.05
"""The time that a process waits for the index at most. A driver is blocked meanwhile."""
_ATTEMPTS = 40
_decode = msgspec.msgpack.Decoder(ExperimentSummary).decode


class Index:
    """`<home>/index.db`, a cache.

    A missing or damaged index is rebuilt from `entries`, the experiments' directories. Failures of
    the index raise no errors: a failed read returns None or nothing, and a failed write is skipped.
    """

    def __init__(self, home: Path, entries: Callable[[], Iterable[Entry]]) -> None:
        self.path = home / "index.db"
        self._entries = entries
        self._database: Database | None = None
        self._inode: tuple[int, int] | None = None
        self._owner = os.getpid(), threading.get_ident()

    def summaries(self, ids: Iterable[int] | None = None) -> dict[int, ExperimentSummary]:
        """Return the last known summary of each experiment, which may be out of date.

        `ids` are the experiments, by default all.
        """
        sql, parameters = "SELECT id, summary FROM experiments", list[str]()
        if ids is not None:
            sql += " WHERE id IN (SELECT value FROM json_each(?))"
            parameters.append(dump([*ids]))
        rows = self.attempt(lambda database: database.rows(sql, parameters))
        found = {}
        for id, summary in rows or []:
            # The experiment is read from its directory instead.
            with suppress(msgspec.DecodeError, TypeError, UnicodeDecodeError):
                found[id] = _decode(summary)
        return found

    def put(self, summary: ExperimentSummary) -> None:
        """Write the summary of an experiment."""
        row = (summary.experiment.id, msgspec.msgpack.encode(summary))
        self.attempt(
            lambda database: database.run("INSERT OR REPLACE INTO experiments VALUES (?, ?)", row)
        )

    def forget(self, id: int) -> None:
        """Remove a deleted experiment. Its numbers are not used again."""

        def drop(database: Database) -> None:
            database.run("DELETE FROM experiments WHERE id = ?", (id,))
            database.run("DELETE FROM blocks WHERE experiment_id = ?", (id,))

        self.attempt(drop)

    def check_writable(self) -> None:
        """Raise StoreError if the file is another user's, as no device could be leased then."""
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise StoreError(
                f"{self.path} cannot be written: it is another user's; choose a home that you can"
                " write to"
            )

    def number(self) -> int | None:
        """Return an unused number for an experiment, or None if the index fails."""
        return self._claim("experiment", 1, None)

    def block(self, experiment_id: int, count: int) -> int | None:
        """Return the first of `count` unused numbers for trials, or None if the index fails."""
        return self._claim("trial", count, experiment_id)

    def experiment_of(self, trial_id: int) -> int | None:
        """Return the experiment to which a trial's number was given, if the index knows it."""
        sql = (
            "SELECT experiment_id FROM blocks WHERE first <= :id AND last >= :id ORDER BY first"
            " DESC LIMIT 1"
        )
        row = self.attempt(lambda database: database.row(sql, {"id": trial_id}))
        return row[0] if row else None

    def is_any_used(self, first: int, last: int) -> bool:
        """Return whether any number of a range may have been given to a trial."""
        sql = "SELECT 1 FROM blocks WHERE first <= ? AND last >= ?"
        rows = self.attempt(lambda database: database.rows(sql, (last, first)))
        return rows is None or bool(rows)

    def reserve(self, experiment_id: int, ranges: Sequence[tuple[int, int]]) -> bool | None:
        """Give certain numbers to an experiment and its trials: all of them or none.

        Returns whether they were free, or None if the index fails.
        """

        def take(database: Database) -> bool:
            sql = "SELECT last FROM blocks WHERE first <= ? ORDER BY first DESC LIMIT 1"
            with database.transaction():
                for first, last in ranges:
                    if (below := database.row(sql, (last,))) and below[0] >= first:
                        return False
                for first, last in ranges:
                    database.run(
                        "INSERT INTO blocks VALUES (?, ?, ?)", (first, last, experiment_id)
                    )
                for name, value in (
                    ("experiment", experiment_id),
                    ("trial", max((last for _, last in ranges), default=0)),
                ):
                    database.run(
                        "UPDATE counters SET value = max(value, ?) WHERE name = ?", (value, name)
                    )
            return True

        return next(
            (free for _ in range(_ATTEMPTS) if (free := self.attempt(take)) is not None), None
        )

    def _claim(self, name: str, count: int, experiment_id: int | None) -> int | None:
        def take(database: Database) -> int:
            with database.transaction():
                (last,) = database.rows(
                    "UPDATE counters SET value = value + ? WHERE name = ? RETURNING value",
                    (count, name),
                )[0]
                first: int = last - count + 1
                if experiment_id is not None:
                    database.run(
                        "INSERT INTO blocks VALUES (?, ?, ?)", (first, last, experiment_id)
                    )
                return first

        return next(
            (first for _ in range(_ATTEMPTS) if (first := self.attempt(take)) is not None), None
        )

    def repair(self) -> list[Entry]:
        """Rebuild the index from the directories, and return the entries.

        Leases and counters of numbers stay.
        """
        found = [*self._entries()]
        try:
            with self.database.transaction():
                self._fill(self.database, found)
        except StoreError as error:
            if not damaged(error):
                raise
            self._replace()
        return found

    def attempt(self, act: Callable[[Database], T]) -> T | None:
        """Call `act` with the index, and again if the file was damaged. Return None on failure."""
        if self._owner != (os.getpid(), threading.get_ident()):
            raise StoreError(
                f"the store of {self.path} was opened by process {self._owner[0]} and can only be"
                " used in that same thread; open it again in this one"
            )
        try:
            return act(self.database)
        except StoreError as error:
            if not damaged(error):
                return None
        with suppress(StoreError, OSError):
            self._replace()
            return act(self.database)
        return None

    @property
    def database(self) -> Database:
        """The database, which is opened again if the file has been replaced.

        Raises StoreError if it cannot be opened.
        """
        if self._database is None or self._inode != self._there():
            self.close()
            readonly = not os.access(self.path.parent, os.W_OK)
            database = Database(self.path, INDEX, readonly=readonly, patience=PATIENCE_SECONDS)
            if not database.row("SELECT 1 FROM counters"):
                with database.transaction():
                    if not database.row("SELECT 1 FROM counters"):
                        found = [*self._entries()]
                        self._fill(database, found)
                        if found:
                            many = f"{len(found)} experiment{'s' * (len(found) > 1)}"
                            made = (
                                "was missing or damaged, and has been made again of the"
                                " directories of"
                            )
                            sys.stderr.write(f"det: {self.path} {made} {many}\n")
            self._database, self._inode = database, self._there()
        return self._database

    @property
    def known(self) -> Database | None:
        """The database if it is open and its file has not been replaced."""
        return self._database if self._inode == self._there() else None

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _there(self) -> tuple[int, int] | None:
        with suppress(OSError):
            there = os.stat(self.path)
            return there.st_dev, there.st_ino
        return None

    def _fill(self, database: Database, entries: list[Entry]) -> None:
        database.run("DELETE FROM experiments")
        database.run("DELETE FROM blocks")
        last = 0
        for id, summary, blocks in entries:
            if summary is not None:
                database.run(
                    "INSERT INTO experiments VALUES (?, ?)", (id, msgspec.msgpack.encode(summary))
                )
            for first, upto in blocks:
                last = max(last, upto)
                database.run("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)", (first, upto, id))
        active = any(summary and summary.experiment.pid for _, summary, _ in entries)
        numbers = {"experiment": max((id for id, *_ in entries), default=0), "trial": last}
        if database.row("SELECT 1 FROM counters") is None and active:
            # Drivers may hold devices that they have not written to the new index yet.
            numbers["made"] = int(time.time())
        for name, value in numbers.items():
            database.run(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value,"
                " excluded.value)",
                (name, value),
            )

    def _replace(self) -> None:
        """Replace a damaged file by a new one, unless another process has just done so."""
        self.close()
        with (self.path.parent / GUARD).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                database = Database(self.path, INDEX, readonly=True)
                sound = database.rows("PRAGMA quick_check") == [("ok",)]
                database.close()
            except StoreError as error:
                sound = not damaged(error)
            if not sound:
                for each in (self.path, *list_sidecars(self.path)):
                    each.unlink(missing_ok=True)
        assert self.database is not None
