"""The alerts of each experiment that are not sent yet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from det_driver.store._database import Flag
from det_driver.store._databases import Databases
from det_driver.store._records import AlertRow
from det_driver.store._schema import dump, load_object

_COLUMNS = "seq, id, webhook, kind, content, created, attempts, due, dead, error"
_Row = tuple[int, str, str, str, str, float, int, float, Flag, str | None]


class Alerts:
    """The unsent alerts of a home's experiments. A sent one is deleted.

    An alert to several webhooks has one row for each. A dead one is not tried again by itself.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def add(self, id: str, webhook: str, kind: str, content: Mapping[str, Any]) -> None:
        """Add an alert to the locked experiment, due at once.

        In one transaction with what it reports, it is sent at least once.
        """
        now = time.time()
        self._databases.held().run(
            "INSERT INTO alerts (id, webhook, kind, content, created, due)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (id, webhook, kind, dump(content), now, now),
        )

    def experiments(self) -> list[int]:
        """Return the experiments that have alerts, in order."""
        return sorted({id for id, _ in self._databases.ask("SELECT 1 FROM alerts LIMIT 1")})

    def list(self, experiment_id: int) -> list[AlertRow]:
        """Return the alerts of an experiment, the oldest first."""
        database = self._databases.of(experiment_id)
        # The columns are constants of ours.
        sql = f"SELECT {_COLUMNS} FROM alerts ORDER BY seq"  # nosec B608
        rows = database.typed(_Row, sql)
        with database.decoding():
            return [
                AlertRow(experiment_id, seq, id, webhook, kind, load_object(content), *rest)
                for seq, id, webhook, kind, content, *rest in rows
            ]

    def remove(self, seq: int) -> None:
        """Delete an alert of the locked experiment, as it is sent."""
        self._databases.held().run("DELETE FROM alerts WHERE seq = ?", (seq,))

    def failed(self, seq: int, error: str, *, due: float, dead: bool) -> None:
        """Record that an attempt has failed: when the next one is due, or that there is none."""
        self._databases.held().run(
            "UPDATE alerts SET attempts = attempts + 1, error = ?, due = ?, dead = ? WHERE seq = ?",
            (error, due, dead, seq),
        )

    def revive(self) -> None:
        """Make all alerts of the locked experiment due now, as if they had not been tried."""
        self._databases.held().run(
            "UPDATE alerts SET attempts = 0, due = ?, dead = 0", (time.time(),)
        )
