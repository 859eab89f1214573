"""Checkpoints: what was saved, where, and how good it is."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._records import CheckpointRow, CheckpointState
from det_driver.store._schema import dump, load
from det_driver.store._trials import Trials

FORGET = "forget"
"""The command that asks a driver to record that a checkpoint (`uuid`, of which `left` bytes remain) was deleted."""

_SELECT = """
SELECT c.uuid, c.trial_id, c.run_id, c.batches, c.state, c.storage, c.size, c.metadata, c.created, c.framework,
    m.data, m.metric
FROM checkpoints c LEFT JOIN metrics m
    ON m.trial_id = c.trial_id AND m.batches = c.batches AND m.kind = 'validation' AND m.archived = 0
"""


class Checkpoints:
    """The checkpoints of trials; the newest whole one is its trial's latest checkpoint."""

    def __init__(
        self, databases: Databases, trials: Trials, send: Callable[[int, str, Mapping[str, Any]], None]
    ) -> None:
        self._databases = databases
        self._trials = trials
        self._send = send

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
        database = self._trials.of(trial_id, "create it before its checkpoints")
        with database.transaction():
            try:
                database.run(
                    "INSERT INTO checkpoints (uuid, trial_id, run_id, batches, state, storage, size, metadata, "
                    "created, framework) VALUES (?, ?, ?, ?, 'COMPLETED', ?, ?, ?, ?, ?)",
                    (uuid, trial_id, run_id, batches, storage, size, dump(metadata or {}), time.time(), framework),
                )
            except sqlite3.IntegrityError as error:
                raise StoreError(
                    f"checkpoint {uuid} is recorded already; give each checkpoint a uuid of its own"
                ) from error
            database.run("UPDATE trials SET latest_checkpoint = ? WHERE id = ?", (uuid, trial_id))
            return _checkpoint(database.rows(f"{_SELECT} WHERE c.uuid = ?", (uuid,))[0])

    def get(self, uuid: str) -> CheckpointRow:
        """The checkpoint of that uuid, or the only one whose uuid begins so."""
        return _checkpoint(self._find(uuid)[1])

    def _find(self, uuid: str) -> tuple[int, Row]:
        # A range, not LIKE: the index serves it, and no character is a wildcard.
        sql = f"{_SELECT} WHERE c.uuid >= :u AND c.uuid < :u || char(1114111) LIMIT 2"
        found: dict[str, tuple[int, Row]] = {}
        for id, row in self._databases.ask(sql, {"u": uuid}) if uuid else ():
            if row[0] == uuid:
                return id, row
            found[row[0]] = id, row
        if not found:
            raise _missing(uuid)
        if len(found) > 1:
            one, other, *_ = sorted(found)
            raise StoreError(f"several checkpoints begin with {uuid!r}, such as {one} and {other}; give more of it")
        return next(iter(found.values()))

    def list(self, *, trial_id: int | None = None, experiment_id: int | None = None) -> list[CheckpointRow]:
        """Those of a trial or of an experiment, in the order in which they were recorded."""
        if experiment_id is not None and trial_id is None:
            return [*map(_checkpoint, self._databases.of(experiment_id).rows(f"{_SELECT} ORDER BY c.seq"))]
        if trial_id is None or experiment_id is not None:
            raise TypeError("give trial_id or experiment_id")
        rows = self._trials.of(trial_id).rows(f"{_SELECT} WHERE c.trial_id = ? ORDER BY c.seq", (trial_id,))
        return [*map(_checkpoint, rows)]

    def elsewhere(self, experiment_id: int) -> set[str]:
        """The uuids of an experiment's checkpoints that others start from, or have too as copies of it."""
        mine = {each.uuid for each in self.list(experiment_id=experiment_id)}
        sql = "SELECT uuid FROM checkpoints WHERE uuid IN (SELECT value FROM json_each(?))"
        copies = {uuid for _, (uuid,) in self._databases.ask(sql, (dump([*mine]),), but=experiment_id)}
        return copies | (mine & self._trials.sources(but=experiment_id))

    def mark_deleted(self, uuid: str, *, left: int = 0) -> None:
        """Record that files were deleted; `left` bytes remain, and with any the checkpoint is partially deleted.

        The trial's latest checkpoint becomes the newest that is still whole, or none. Where another process drives the
        experiment, that one is asked to record it.
        """
        experiment_id, (found, *_) = self._find(uuid)
        if found != uuid:
            raise _missing(uuid)
        try:
            with self._databases.writing(experiment_id) as database:
                record_deleted(database, uuid, left)
        except ExperimentBusy:
            self._send(experiment_id, FORGET, {"uuid": uuid, "left": left})


def record_deleted(database: Database, uuid: str, left: int) -> None:
    """Record that a checkpoint's files were deleted, but for `left` bytes."""
    state = CheckpointState.PARTIALLY_DELETED if left else CheckpointState.DELETED
    with database.transaction():
        database.run("UPDATE checkpoints SET state = ?, size = ? WHERE uuid = ?", (state, left, uuid))
        database.run(
            "UPDATE trials SET latest_checkpoint = (SELECT uuid FROM checkpoints WHERE trial_id = trials.id "
            "AND state = 'COMPLETED' ORDER BY seq DESC LIMIT 1) WHERE latest_checkpoint = :uuid "
            "AND id = (SELECT trial_id FROM checkpoints WHERE uuid = :uuid)",
            {"uuid": uuid},
        )


def _missing(uuid: str) -> StoreError:
    return StoreError(f"no checkpoint {uuid!r}; det checkpoint list EXPERIMENT shows an experiment's")


def _checkpoint(row: Row) -> CheckpointRow:
    uuid, trial_id, run_id, batches, state, storage, size, metadata, created, framework, data, metric = row
    return CheckpointRow(
        *(uuid, trial_id, run_id, batches, CheckpointState(state), storage, size, load(metadata), created, framework),
        *(None if data is None else load(data), metric),
    )
