"""Checkpoints: their files, their storage and their metrics."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._records import CheckpointRow, CheckpointState
from det_driver.store._schema import convert, dump, load_object
from det_driver.store._trials import Trials

FORGET = "forget"
"""The command that asks a driver to record that a checkpoint was deleted.

Its arguments are the `uuid` and the number of bytes that are `left`.
"""

ADOPTED = 2
"""Stands in the column `imported` for a checkpoint whose files this home has copied."""
CARRIED = 3
"""Stands there for a checkpoint whose files an import has put into the home.

For other imported checkpoints 1 stands there. Files of that name may be another experiment's.
"""

_SELECT = """
SELECT c.uuid, c.trial_id, c.run_id, c.batches, c.state, c.storage, c.size, c.metadata, c.created,
    c.framework, m.data, m.metric, c.imported
FROM checkpoints c LEFT JOIN metrics m
    ON m.trial_id = c.trial_id AND m.batches = c.batches
    AND m.kind = 'validation' AND m.archived = 0
"""
_row = msgspec.json.Decoder(tuple[
    str, int, int, int, CheckpointState, str, int, str, float, str, str | None, float | None, int,
])  # fmt: skip


class Checkpoints:
    """The checkpoints of trials. The newest complete one is the latest checkpoint of its trial."""

    def __init__(
        self,
        databases: Databases,
        trials: Trials,
        send: Callable[[int, str, Mapping[str, Any]], None],
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
        at: float | None = None,
        imported: bool = False,
    ) -> CheckpointRow:
        """Record a checkpoint whose files are complete.

        `size` is in bytes. `storage` is JSON text or a URL. `at` is when it was written, by default
        now. An `imported` one was written by another home, and its files are not touched here.
        """
        database = self._trials.of(trial_id, "create it before its checkpoints")
        with database.transaction():
            try:
                database.run(
                    "INSERT INTO checkpoints (uuid, trial_id, run_id, batches, state, storage,"
                    " size, metadata, created, framework, imported) VALUES (?, ?, ?, ?,"
                    " 'COMPLETED', ?, ?, ?, ?, ?, ?)",
                    (
                        uuid,
                        trial_id,
                        run_id,
                        batches,
                        storage,
                        size,
                        dump(metadata or {}),
                        time.time() if at is None else at,
                        framework,
                        int(imported),
                    ),
                )
            except sqlite3.IntegrityError as error:
                raise StoreError(
                    f"checkpoint {uuid} is recorded already; give each checkpoint a uuid of its own"
                ) from error
            database.run("UPDATE trials SET latest_checkpoint = ? WHERE id = ?", (uuid, trial_id))
            return _checkpoint(database, database.rows(f"{_SELECT} WHERE c.uuid = ?", (uuid,))[0])

    def get(self, uuid: str) -> CheckpointRow:
        """Return the checkpoint with this uuid, or the only one whose uuid begins with it."""
        id, row = self._find(uuid)
        return _checkpoint(self._databases.of(id), row)

    def check_visible(self, uuid: str) -> None:
        """Raise StoreError for a checkpoint that only experiments have which are not visible.

        One that no experiment has may be in a storage from elsewhere.
        """
        if self._databases.visible is None:
            return
        sql = "SELECT 1 FROM checkpoints WHERE uuid = ?"
        found = [id for id, _ in self._databases.ask(sql, (uuid,), hidden=True)]
        if found and not any(map(self._databases.is_visible, found)):
            raise _missing(uuid)

    def _find(self, uuid: str) -> tuple[int, Row]:
        # A range, not LIKE: the index serves it, and no character is a wildcard.
        sql = f"{_SELECT} WHERE c.uuid >= :u AND c.uuid < :u || char(1114111) LIMIT 2"
        found: dict[str, tuple[int, Row]] = {}
        for id, row in self._databases.ask(sql, {"u": uuid}) if uuid else ():
            # An import may have the checkpoints of another experiment, and does not hide them.
            own = not row[-1] or self._databases.is_locked(id)
            if own and row[0] == uuid:
                return id, row
            if own or row[0] not in found:
                found[row[0]] = id, row
        if uuid in found:
            return found[uuid]
        if not found:
            raise _missing(uuid)
        if len(found) > 1:
            one, other, *_ = sorted(found)
            raise StoreError(
                f"several checkpoints begin with {uuid!r}, such as {one} and {other}; give more"
                " of it"
            )
        return next(iter(found.values()))

    def list(
        self, *, trial_id: int | None = None, experiment_id: int | None = None
    ) -> list[CheckpointRow]:
        """Return the checkpoints of a trial or of an experiment, the first recorded one first."""
        if experiment_id is not None and trial_id is None:
            database = self._databases.of(experiment_id)
            return [
                _checkpoint(database, row) for row in database.rows(f"{_SELECT} ORDER BY c.seq")
            ]
        if trial_id is None or experiment_id is not None:
            raise TypeError("give trial_id or experiment_id")
        database = self._trials.of(trial_id)
        rows = database.rows(f"{_SELECT} WHERE c.trial_id = ? ORDER BY c.seq", (trial_id,))
        return [_checkpoint(database, row) for row in rows]

    def imported(self, experiment_id: int) -> set[str]:
        """Return the uuids that came with an import: this home has not written their files."""
        rows = self._databases.of(experiment_id).rows("SELECT uuid FROM checkpoints WHERE imported")
        return {uuid for (uuid,) in rows}

    def carried(self, experiment_id: int) -> set[str]:
        """Return the uuids of imported checkpoints whose files the import has put into the home."""
        return self._imported_as(experiment_id, CARRIED)

    def adopted(self, experiment_id: int) -> set[str]:
        """Return the uuids of imported checkpoints whose files this home has copied."""
        return self._imported_as(experiment_id, ADOPTED)

    def _imported_as(self, experiment_id: int, kind: int) -> set[str]:
        rows = self._databases.of(experiment_id).rows(
            "SELECT uuid FROM checkpoints WHERE imported = ?", (kind,)
        )
        return {uuid for (uuid,) in rows}

    def adopt(self, uuid: str, *, storage: str, size: int, framework: str) -> None:
        """Record that this home has copied the files of an imported checkpoint to `storage`.

        Its trial's latest checkpoint becomes the newest one that was copied.
        """
        experiment_id, (found, *_) = self._find(uuid)
        with self._databases.writing(experiment_id) as database, database.transaction():
            database.run(
                "UPDATE checkpoints SET storage = ?, size = ?, framework = ?, imported = ? WHERE"
                " uuid = ?",
                (storage, size, framework, ADOPTED, found),
            )
            database.run(
                "UPDATE trials SET latest_checkpoint = (SELECT uuid FROM checkpoints WHERE trial_id"
                " = trials.id AND state = 'COMPLETED' AND imported <> 1 ORDER BY seq DESC LIMIT 1)"
                " WHERE id = (SELECT trial_id FROM checkpoints WHERE uuid = ?)",
                (found,),
            )

    def elsewhere(self, experiment_id: int) -> set[str]:
        """Return the uuids of an experiment's checkpoints that other experiments need.

        Trials of the others start from these checkpoints, or the others are copies that have them
        too. Experiments that are not visible to the store's user need them as others do. Raises
        StoreError if an experiment cannot be read, as it may need them.
        """
        sql = (
            "SELECT uuid FROM checkpoints WHERE state <> 'DELETED' AND uuid IN (SELECT value FROM"
            " json_each(:mine)) UNION SELECT source_checkpoint FROM trials WHERE source_checkpoint"
            " IN (SELECT value FROM json_each(:mine))"
        )
        rows = self._databases.of(experiment_id).typed(tuple[str], "SELECT uuid FROM checkpoints")
        mine = dump([uuid for (uuid,) in rows])
        asked = self._databases.ask_every(sql, {"mine": mine}, but=experiment_id)
        return {uuid for _, (uuid,) in asked}

    def set_metadata(self, uuid: str, metadata: Mapping[str, Any]) -> None:
        """Replace the recorded metadata of a checkpoint.

        Raises ExperimentBusy if another process drives the experiment.
        """
        experiment_id, (found, *_) = self._find(uuid)
        with self._databases.writing(experiment_id) as database, database.transaction():
            database.run(
                "UPDATE checkpoints SET metadata = ? WHERE uuid = ?", (dump({**metadata}), found)
            )

    def mark_deleted(self, uuid: str, *, left: int = 0) -> None:
        """Record that files were deleted.

        If `left` bytes remain, the checkpoint is partially deleted. The trial's latest checkpoint
        becomes the newest complete one, or none. If another process drives the experiment, this
        sends it a command to record the deletion.
        """
        experiment_id, (found, *_) = self._find(uuid)
        if found != uuid:
            raise _missing(uuid)
        try:
            with self._databases.writing(experiment_id) as database:
                record_deleted(database, uuid, left)
        except ExperimentBusy:
            self._send(experiment_id, FORGET, {"uuid": uuid, "left": left})

    def mark_damaged(self, uuid: str) -> str | None:
        """Record that the files differ from those that were written.

        Returns the uuid of the trial's latest checkpoint after that.
        """
        damaged = self.get(uuid)
        _set_state(self._trials.of(damaged.trial_id), uuid, CheckpointState.DAMAGED, damaged.size)
        return self._trials.get(damaged.trial_id).latest_checkpoint

    def make_latest(self, uuid: str) -> None:
        """Make a checkpoint whose files are complete the one from which its trial continues."""
        trial = self.get(uuid).trial_id
        database = self._trials.of(trial)
        with database.transaction():
            database.run("UPDATE checkpoints SET state = 'COMPLETED' WHERE uuid = ?", (uuid,))
            database.run("UPDATE trials SET latest_checkpoint = ? WHERE id = ?", (uuid, trial))


def record_deleted(database: Database, uuid: str, left: int) -> None:
    """Record that a checkpoint's files were deleted, except for `left` bytes."""
    state = CheckpointState.PARTIALLY_DELETED if left else CheckpointState.DELETED
    _set_state(database, uuid, state, left)


def _set_state(database: Database, uuid: str, state: CheckpointState, size: int) -> None:
    """Set the state of a checkpoint that is not complete any more.

    The newest complete checkpoint becomes the latest one of its trial.
    """
    with database.transaction():
        database.run(
            "UPDATE checkpoints SET state = ?, size = ? WHERE uuid = ?", (state, size, uuid)
        )
        database.run(
            "UPDATE trials SET latest_checkpoint = (SELECT uuid FROM checkpoints WHERE trial_id ="
            " trials.id AND state = 'COMPLETED' ORDER BY seq DESC LIMIT 1) WHERE latest_checkpoint"
            " = :uuid AND id = (SELECT trial_id FROM checkpoints WHERE uuid = :uuid)",
            {"uuid": uuid},
        )


def _missing(uuid: str) -> StoreError:
    return StoreError(
        f"no checkpoint {uuid!r}; det checkpoint list EXPERIMENT shows an experiment's"
    )


def _checkpoint(database: Database, row: Row) -> CheckpointRow:
    with database.decoding():
        *first, metadata, created, framework, data, metric, _ = convert(row, _row.type)
        return CheckpointRow(
            *(
                *first,
                load_object(metadata),
                created,
                framework,
                None if data is None else load_object(data),
                metric,
            )
        )
