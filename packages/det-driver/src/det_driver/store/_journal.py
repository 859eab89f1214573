"""The journal of an experiment, and what people ask of its driver, which runs in another process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any

from det_core.errors import StoreError
from det_driver.store._database import Database
from det_driver.store._records import CommandRow, Event
from det_driver.store._schema import dump, load

PAGE = 2000


class Journal:
    """The journals of a store's experiments; each is written by the driver that holds its experiment's lock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, experiment_id: int, event: bytes | str) -> int:
        """Append one event, JSON; returns its number, 1, 2, 3 ... without a gap."""
        try:
            row = self._database.row(
                "INSERT INTO journal SELECT :id, coalesce(max(seq), 0) + 1, :time, :event FROM journal "
                "WHERE experiment_id = :id RETURNING seq",
                {
                    "id": experiment_id,
                    "time": time.time(),
                    "event": event if isinstance(event, str) else event.decode(),
                },
            )
        except sqlite3.IntegrityError as error:
            raise StoreError(f"no experiment {experiment_id}; create it before its journal") from error
        assert row is not None  # RETURNING gives the row or raises
        return int(row[0])

    def read(self, experiment_id: int, after: int = 0) -> Iterator[Event]:
        """Stream the events whose number is above `after`, in order."""
        while True:
            rows = self._database.rows(
                "SELECT seq, time, event FROM journal WHERE experiment_id = ? AND seq > ? ORDER BY seq LIMIT ?",
                (experiment_id, after, PAGE),
            )
            for seq, at, event in rows:
                yield Event(seq, at, event.encode())
            if len(rows) < PAGE:
                return
            after = rows[-1][0]


class CommandQueue:
    """The commands that wait for the drivers of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def send(self, experiment_id: int, kind: str, args: Mapping[str, Any] | None = None) -> None:
        """Leave a command for the experiment's driver, now or when there is one."""
        try:
            self._database.run(
                "INSERT INTO commands (experiment_id, kind, args, sent) VALUES (?, ?, ?, ?)",
                (experiment_id, kind, dump(args or {}), time.time()),
            )
        except sqlite3.IntegrityError as error:
            raise StoreError(f"no experiment {experiment_id}; det list shows those there are") from error

    def waiting(self, experiment_id: int) -> bool:
        """Whether any has not been taken yet."""
        return self._database.row("SELECT 1 FROM commands WHERE experiment_id = ?", (experiment_id,)) is not None

    def take(self, experiment_id: int) -> list[CommandRow]:
        """Take those that wait, oldest first; in one transaction with their effect, each counts exactly once."""
        # Looking first keeps a driver that polls from asking for the write lock each time.
        if not self.waiting(experiment_id):
            return []
        rows = self._database.rows(
            "DELETE FROM commands WHERE experiment_id = ? RETURNING id, kind, args, sent", (experiment_id,)
        )
        return [CommandRow(id, kind, load(args), sent) for id, kind, args, sent in sorted(rows)]
