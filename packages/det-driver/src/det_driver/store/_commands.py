"""Commands: what people ask of a driver that runs in another process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from det_core.errors import StoreError
from det_driver.store._database import Database
from det_driver.store._json import dump, load
from det_driver.store._records import Command


class Commands:
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

    def take(self, experiment_id: int) -> list[Command]:
        """Take those that wait, oldest first; in one transaction with their effect, each counts exactly once."""
        # Looking first keeps a driver that polls from asking for the write lock each time.
        if self._database.row("SELECT 1 FROM commands WHERE experiment_id = ?", (experiment_id,)) is None:
            return []
        rows = self._database.rows(
            "DELETE FROM commands WHERE experiment_id = ? RETURNING id, kind, args, sent", (experiment_id,)
        )
        return [Command(id, kind, load(args), sent) for id, kind, args, sent in sorted(rows)]
