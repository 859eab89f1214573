"""The index of a home: what `det list` shows, which numbers are taken, who holds which device. All of it can be made again."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from det_core.errors import StoreError
from det_driver.store._database import Database, Row, damaged
from det_driver.store._file import beside
from det_driver.store._records import ExperimentSummary
from det_driver.store._schema import INDEX

T = TypeVar("T")
Entry = tuple[int, ExperimentSummary | None, list[Row]]
"""An experiment's number, what there is to say of it (None where it cannot be read), and the blocks of its trials' numbers."""

PATIENCE_SECONDS = 0.05
"""How long anybody waits for the index: so long, a driver waits for others."""
_ATTEMPTS = 40
_decode = msgspec.msgpack.Decoder(ExperimentSummary).decode


class Index:
    """`<home>/index.db`, a cache. Where it is missing or damaged it is made again of `entries`, the experiments' directories.

    What cannot be asked of it is answered with nothing, and what cannot be written is left out: it is no failure of anybody's.
    """

    def __init__(self, home: Path, entries: Callable[[], Iterable[Entry]]) -> None:
        self.path = home / "index.db"
        self._entries = entries
        self._database: Database | None = None
        self._inode: tuple[int, int] | None = None
        self._owner = os.getpid(), threading.get_ident()

    def summaries(self) -> dict[int, ExperimentSummary]:
        """What was noted of each experiment, which may be out of date."""
        rows = self.attempt(lambda database: database.rows("SELECT id, summary FROM experiments")) or []
        return {id: _decode(summary) for id, summary in rows}

    def put(self, summary: ExperimentSummary) -> None:
        """Note how an experiment stands."""
        row = (summary.experiment.id, msgspec.msgpack.encode(summary))
        self.attempt(lambda database: database.run("INSERT OR REPLACE INTO experiments VALUES (?, ?)", row))

    def forget(self, id: int) -> None:
        """Drop an experiment that has been deleted; its numbers are not used again."""

        def drop(database: Database) -> None:
            database.run("DELETE FROM experiments WHERE id = ?", (id,))
            database.run("DELETE FROM blocks WHERE experiment_id = ?", (id,))

        self.attempt(drop)

    def number(self) -> int | None:
        """A number for an experiment that none has had; None where the index cannot say."""
        return self._claim("experiment", 1, None)

    def block(self, experiment_id: int, count: int) -> int | None:
        """The first of `count` numbers for an experiment's trials, which no other trial of the home has; None likewise."""
        return self._claim("trial", count, experiment_id)

    def experiment_of(self, trial_id: int) -> int | None:
        """The experiment to which a trial's number was given, as far as the index knows."""
        sql = "SELECT experiment_id FROM blocks WHERE first <= :id AND last >= :id ORDER BY first DESC LIMIT 1"
        row = self.attempt(lambda database: database.row(sql, {"id": trial_id}))
        return row[0] if row else None

    def taken(self, first: int, last: int) -> bool:
        """Whether any number of a range may have been given to a trial."""
        sql = "SELECT 1 FROM blocks WHERE first <= ? AND last >= ?"
        rows = self.attempt(lambda database: database.rows(sql, (last, first)))
        return rows is None or bool(rows)

    def _claim(self, name: str, count: int, experiment_id: int | None) -> int | None:
        def take(database: Database) -> int:
            with database.transaction():
                (last,) = database.rows(
                    "UPDATE counters SET value = value + ? WHERE name = ? RETURNING value", (count, name)
                )[0]
                first: int = last - count + 1
                if experiment_id is not None:
                    database.run("INSERT INTO blocks VALUES (?, ?, ?)", (first, last, experiment_id))
                return first

        return next((first for _ in range(_ATTEMPTS) if (first := self.attempt(take)) is not None), None)

    def repair(self) -> list[Entry]:
        """Make it again of the directories; leases, and numbers that are given away, stay. Returns what it was made of."""
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
        """Do something with it, once more where it was damaged; None where that does not go."""
        if self._owner != (os.getpid(), threading.get_ident()):
            raise StoreError(
                f"the store of {self.path} was opened by process {self._owner[0]} and can only be used in that same thread; "
                "open it anew in this one"
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
        """The database itself, opened anew where the file is not the one that was opened; StoreError where it cannot be."""
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
                            made = "was missing or damaged, and has been made again of the directories of"
                            sys.stderr.write(f"det: {self.path} {made} {many}\n")
            self._database, self._inode = database, self._there()
        return self._database

    @property
    def known(self) -> Database | None:
        """The database if it is open, and still the file."""
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
                database.run("INSERT INTO experiments VALUES (?, ?)", (id, msgspec.msgpack.encode(summary)))
            for first, upto in blocks:
                last = max(last, upto)
                database.run("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)", (first, upto, id))
        active = any(summary and summary.experiment.pid for _, summary, _ in entries)
        numbers = {"experiment": max((id for id, *_ in entries), default=0), "trial": last}
        if database.row("SELECT 1 FROM counters") is None and active:
            numbers["made"] = int(time.time())  # drivers may hold devices that they have not named again yet
        for name, value in numbers.items():
            database.run(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (name, value),
            )

    def _replace(self) -> None:
        """Put a new file in the place of a damaged one, unless another process has just done so."""
        self.close()
        with (self.path.parent / "index.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                database = Database(self.path, INDEX, readonly=True)
                sound = database.rows("PRAGMA quick_check") == [("ok",)]
                database.close()
            except StoreError as error:
                sound = not damaged(error)
            if not sound:
                for each in (self.path, *beside(self.path)):
                    each.unlink(missing_ok=True)
        assert self.database is not None
