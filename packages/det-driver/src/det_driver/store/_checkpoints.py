"""Checkpoints: what was saved, where, and how good it is."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._records import CheckpointRow, CheckpointState
from det_driver.store._schema import dump, load

_SELECT = """
SELECT c.uuid, c.trial_id, c.run_id, c.batches, c.state, c.storage, c.size, c.metadata, c.created, c.framework,
    m.data, m.metric
FROM checkpoints c LEFT JOIN metrics m
    ON m.trial_id = c.trial_id AND m.batches = c.batches AND m.kind = 'validation' AND m.archived = 0
"""


class Checkpoints:
    """The checkpoints of a store's trials; the newest whole one is its trial's latest checkpoint."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        uuid: str,
        trial_id: int,
        run_id: int,
        batches: int,
        *,
        storage: str,
        size: int,
        metadata: Mapping[str, Any] | None = None,
        framework: str = "",
    ) -> CheckpointRow:
        """Record a checkpoint whose files are complete; `size` is in bytes, `storage` JSON text or a URL."""
        with self._database.transaction():
            try:
                self._database.run(
                    "INSERT INTO checkpoints (uuid, trial_id, run_id, batches, state, storage, size, metadata, "
                    "created, framework) VALUES (?, ?, ?, ?, 'COMPLETED', ?, ?, ?, ?, ?)",
                    (uuid, trial_id, run_id, batches, storage, size, dump(metadata or {}), time.time(), framework),
                )
            except sqlite3.IntegrityError as error:
                raise self._refused(uuid, trial_id) from error
            self._database.run("UPDATE trials SET latest_checkpoint = ? WHERE id = ?", (uuid, trial_id))
            return self.get(uuid)

    def _refused(self, uuid: str, trial_id: int) -> StoreError:
        if self._database.row("SELECT 1 FROM trials WHERE id = ?", (trial_id,)) is None:
            return StoreError(f"no trial {trial_id}; create it before its checkpoints")
        return StoreError(f"checkpoint {uuid} is recorded already; give each checkpoint a uuid of its own")

    def get(self, uuid: str) -> CheckpointRow:
        """The checkpoint of that uuid, or the only one whose uuid begins so."""
        rows = self._database.rows(f"{_SELECT} WHERE c.uuid = ?", (uuid,))
        if not rows and uuid:
            # A range, not LIKE: the index serves it, and no character is a wildcard.
            rows = self._database.rows(
                f"{_SELECT} WHERE c.uuid > :u AND c.uuid < :u || char(1114111) LIMIT 2", {"u": uuid}
            )
        if not rows:
            raise StoreError(f"no checkpoint {uuid!r}; det checkpoint list EXPERIMENT shows an experiment's")
        if len(rows) > 1:
            raise StoreError(
                f"several checkpoints begin with {uuid!r}, such as {rows[0][0]} and {rows[1][0]}; give more of it"
            )
        return _checkpoint(rows[0])

    def list(self, *, trial_id: int | None = None, experiment_id: int | None = None) -> list[CheckpointRow]:
        """Those of a trial or of an experiment, in the order in which they were recorded."""
        if (trial_id is None) == (experiment_id is None):
            raise TypeError("give trial_id or experiment_id")
        where, id = ("c.trial_id = :id", trial_id) if experiment_id is None else (_IN_EXPERIMENT, experiment_id)
        rows = self._database.rows(f"{_SELECT} WHERE {where} ORDER BY c.seq", {"id": id})
        return [_checkpoint(row) for row in rows]

    def mark_deleted(self, uuid: str, *, left: int = 0) -> None:
        """Record that files were deleted; `left` bytes remain, and with any the checkpoint is partially deleted.

        The trial's latest checkpoint becomes the newest that is still whole, or none.
        """
        state = CheckpointState.PARTIALLY_DELETED if left else CheckpointState.DELETED
        with self._database.transaction():
            changed = self._database.row(
                "UPDATE checkpoints SET state = ?, size = ? WHERE uuid = ? RETURNING trial_id", (state, left, uuid)
            )
            if changed is None:
                raise StoreError(f"no checkpoint {uuid!r}; det checkpoint list EXPERIMENT shows an experiment's")
            self._database.run(
                "UPDATE trials SET latest_checkpoint = (SELECT uuid FROM checkpoints WHERE trial_id = trials.id "
                "AND state = 'COMPLETED' ORDER BY seq DESC LIMIT 1) WHERE id = ? AND latest_checkpoint = ?",
                (*changed, uuid),
            )


_IN_EXPERIMENT = "c.trial_id IN (SELECT id FROM trials WHERE experiment_id = :id)"


def _checkpoint(row: Row) -> CheckpointRow:
    uuid, trial_id, run_id, batches, state, storage, size, metadata, created, framework, data, metric = row
    return CheckpointRow(
        *(uuid, trial_id, run_id, batches, CheckpointState(state), storage, size, load(metadata), created, framework),
        *(None if data is None else load(data), metric),
    )
