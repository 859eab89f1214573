"""Trials: the choices of hyperparameters that an experiment has tried so far."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec

from det_core.errors import StoreError
from det_driver.store._database import Database, Flag, Row
from det_driver.store._databases import Databases
from det_driver.store._index import Index
from det_driver.store._records import TrialRow, TrialState
from det_driver.store._schema import assignments, convert, dump, load, load_object

_COLUMNS = (
    "id, request, hparams, seed, state, batches, restarts, runs, progress, best_metric,"
    " best_batches, latest_metric, latest_checkpoint, source_checkpoint, started, ended,"
    " exit_reason"
)

_flag = msgspec.json.Decoder(Flag)
_row = msgspec.json.Decoder(tuple[
    int, int, str, int, TrialState, int, int, int, float, float | None, int | None, float | None,
    str | None, str | None, float | None, float | None, str | None,
])  # fmt: skip

_LARGEST_BLOCK = 1024
_WITHOUT_INDEX = 10**9
"""If the index fails, the trial numbers of an experiment begin at this times its own number."""
_END = 2**63
# Multiples of its golden section, modulo it, are spread evenly over it.
_SPREAD = 2**31
_LISTED = "det show EXPERIMENT lists an experiment's trials"


class TrialChanges(TypedDict, total=False):
    """The columns that `update` may change. Metrics, runs and checkpoints change the others."""

    state: TrialState
    hparams: str
    seed: int
    batches: int
    restarts: int
    progress: float
    ended: float | None
    exit_reason: str | None


_GOING = dump([str(state) for state in TrialState if not state.ended])
_CHANGED = (
    "state IN (SELECT value FROM json_each(:going)) OR id IN (SELECT value FROM json_each(:open))"
    " OR request > :after"
)


class TrialsMark(NamedTuple):
    """A point in time: the trials that had not ended, and the `request` of the newest trial."""

    open: dict[int, TrialRow]
    newest: int


class Trials:
    """The trials of a home's experiments."""

    def __init__(self, databases: Databases, index: Index) -> None:
        self._databases = databases
        self._index = index

    def create(
        self,
        experiment_id: int,
        request: int,
        hparams: Mapping[str, Any],
        seed: int,
        *,
        source_checkpoint: str | None = None,
    ) -> TrialRow:
        """Add a trial. `request` is the searcher's number for it, unique in the experiment."""
        database = self._databases.of(experiment_id)
        text = dump(hparams)
        with database.joined:
            memory = database.memory
            if memory.request is None:
                memory.request = database.rows("SELECT coalesce(max(request), -1) FROM trials")[0][
                    0
                ]
            id = self._free_id(database)
            write = (
                database.put
                if memory.request < request < _END and 0 <= seed < _END
                else database.run
            )
            try:
                write(
                    "INSERT INTO trials (id, request, hparams, seed, state, source_checkpoint)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (id, request, text, seed, TrialState.QUEUED, source_checkpoint),
                )
            except sqlite3.IntegrityError as error:
                raise StoreError(
                    f"experiment {experiment_id} has a trial {request} of its searcher already"
                ) from error
            memory.request = max(request, memory.request)
            memory.trials.add(id)
        unknown = (0, 0, 0, 0.0, None, None, None, None, source_checkpoint, None, None, None)
        return TrialRow(id, database.id, request, load(text), seed, TrialState.QUEUED, *unknown)

    def _free_id(self, database: Database) -> int:
        """Return a number that no other trial of the home has.

        The first blocks of numbers are small, as most experiments are.
        """
        next, last = database.memory.free or self._block(database)
        if next > last:
            sql = "SELECT coalesce(sum(last - first + 1), 0) FROM blocks"
            ((given,),) = database.typed(tuple[int], sql)
            count = min(max(given, 1), _LARGEST_BLOCK)
            next = self._index.block(database.id, count) or database.id * _WITHOUT_INDEX + given
            last = next + count - 1
            database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", (next, last))
        database.memory.free = next + 1, last
        return next

    def _block(self, database: Database) -> tuple[int, int]:
        """Return the next number of the last block, and the block's last number."""
        blocks = database.typed(
            tuple[int, int], "SELECT first, last FROM blocks ORDER BY seq DESC LIMIT 1"
        )
        if not blocks:
            return 1, 0
        (block,) = blocks
        highest = database.rows("SELECT max(id) FROM trials WHERE id BETWEEN ? AND ?", block)[0][0]
        return (highest or block[0] - 1) + 1, block[1]

    def get(self, id: int) -> TrialRow:
        """Return the trial. Raises StoreError if it does not exist."""
        database = self.of(id)
        # Names of tables and columns are constants of ours; values are parameters.
        rows = database.rows(f"SELECT {_COLUMNS} FROM trials WHERE id = ?", (id,))  # nosec B608
        return _trial(database, rows[0])

    def read(self, experiment_id: int, ids: Iterable[int]) -> dict[int, TrialRow]:
        """Return several trials of an experiment, without those that do not exist."""
        database = self._databases.of(experiment_id)
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"SELECT {_COLUMNS} FROM trials WHERE id IN (SELECT value FROM json_each(?))"  # nosec B608
        found = (_trial(database, row) for row in database.rows(sql, (dump([*ids]),)))
        return {row.id: row for row in found}

    def of(self, id: int, otherwise: str = _LISTED) -> Database:
        """Return the database of a trial's experiment.

        Raises a StoreError that ends with `otherwise` if there is no such trial.
        """
        return self._databases.of_trial(id, self._index.experiment_of, otherwise)

    def best(self, experiment_id: int) -> float | None:
        """Return the best value of the searcher's metric, found by an SQL index."""
        database = self._databases.of(experiment_id)
        known = None if database.readonly else database.memory.best
        if known is None:
            best = "min" if _smaller_is_better(database) else "max"
            sql = (
                # Names of tables and columns are constants of ours; values are parameters.
                f"SELECT {best}(best_metric) FROM trials WHERE best_metric IS NOT NULL"  # nosec B608
            )
            ((best_metric,),) = database.typed(tuple[float | None], sql)
            known = database.memory.best = (best_metric,)
        return known[0]

    def list(
        self, experiment_id: int, *, best_first: bool = False, limit: int | None = None
    ) -> list[TrialRow]:
        """Return the trials in order of creation, or by the searcher's metric.

        Trials without the metric come last.
        """
        database = self._databases.of(experiment_id)
        order = ""
        if best_first:
            order = (
                "best_metric IS NULL, best_metric"
                f" {'ASC' if _smaller_is_better(database) else 'DESC'}, "
            )
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"SELECT {_COLUMNS} FROM trials ORDER BY {order}id LIMIT ?"  # nosec B608
        rows = database.rows(sql, (-1 if limit is None else limit,))
        return [_trial(database, row) for row in rows]

    def changed(
        self, id: int, since: TrialsMark | None = None
    ) -> tuple[Sequence[TrialRow], TrialsMark]:
        """Return an experiment's trials in order, and a mark of now.

        With `since`, return only those that have changed since that mark. One query reads only the
        trials that have not ended, had not ended at the mark, or are new since then.
        """
        known, after = since or TrialsMark({}, -1)
        sql = (
            # Names of tables and columns are constants of ours; values are parameters.
            f"SELECT {_COLUMNS} FROM trials WHERE {'1' if since is None else _CHANGED} ORDER BY id"  # nosec B608
        )
        database = self._databases.of(id)
        found = database.rows(sql, {"going": _GOING, "open": dump([*known]), "after": after})
        rows = [_trial(database, row) for row in found]
        newest = max((row.request for row in rows), default=after)
        mark = TrialsMark({row.id: row for row in rows if not row.state.ended}, max(after, newest))
        return [row for row in rows if known.get(row.id) != row], mark

    def measured(
        self, experiment_id: int, most: int | None = None
    ) -> Sequence[tuple[dict[str, Any], float]]:
        """Return the hyperparameters and the best metric of each trial that has one, in order.

        If there are more than `most`, about `most` are chosen. The choice is always the same, and
        does not prefer any part of a regular grid.
        """
        database = self._databases.of(experiment_id)
        there = "FROM trials WHERE best_metric IS NOT NULL"
        count = database.rows(f"SELECT count(*) {there}")[0][0]
        chosen = _SPREAD if most is None or count <= most else _SPREAD * most // count
        sql = (
            f"SELECT hparams, best_metric {there} AND id % {_SPREAD} * 1327217885 % {_SPREAD} < ?"
            " ORDER BY id"
        )
        rows = database.typed(tuple[str, float], sql, (chosen,))
        with database.decoding():
            return [(load_object(hparams), best) for hparams, best in rows]

    def invalid_in_a_row(self, experiment_id: int) -> tuple[int, int]:
        """Return how many of the last ended trials in a row had invalid hyperparameters.

        The second number says how many of these had a metric.
        """
        sql = (
            "SELECT count(*), count(best_metric) FROM trials WHERE state = 'INVALID_HP' AND ended >"
            " (SELECT coalesce(max(ended), 0) FROM trials WHERE state != 'INVALID_HP')"
        )
        count, measured = self._databases.of(experiment_id).rows(sql)[0]
        return int(count), int(measured)

    def first_failures(self, experiment_id: int) -> Sequence[str]:
        """Return why trials failed, where all that have ended did, and none has made progress."""
        sql = (
            "SELECT count(*) FROM trials WHERE batches > 0 OR progress > 0 OR best_metric IS NOT"
            " NULL OR latest_checkpoint IS NOT NULL OR (ended IS NOT NULL AND state != 'ERROR')"
        )
        database = self._databases.of(experiment_id)
        ((others,),) = database.rows(sql)
        failed = "SELECT coalesce(exit_reason, '') FROM trials WHERE ended IS NOT NULL"
        return [] if others else [reason for (reason,) in database.rows(failed)]

    def unmeasured(self, experiment_id: int, most: int) -> Sequence[int]:
        """Return the first trials that completed without a number for the searcher's metric."""
        sql = (
            "SELECT id FROM trials WHERE state = 'COMPLETED' AND best_metric IS NULL ORDER BY id"
            " LIMIT ?"
        )
        return [id for (id,) in self._databases.of(experiment_id).rows(sql, (most,))]

    def update(self, id: int, **changes: Unpack[TrialChanges]) -> None:
        """Change the named columns."""
        text, parameters = assignments(changes, TrialChanges)
        database = self.of(id)
        # SQLite may reject these numbers, and `put` requires values that it accepts.
        write = database.run if changes.keys() & {"progress", "batches"} else database.put
        # Names of tables and columns are constants of ours; values are parameters.
        write(f"UPDATE trials SET {text} WHERE id = ?", (*parameters, id))  # nosec B608
        if "batches" in changes:
            database.memory.reports.pop(id, None)

    def sources(self, experiment_id: int) -> set[str]:
        """Return the uuids of the checkpoints from which an experiment's trials start."""
        sql = "SELECT DISTINCT source_checkpoint FROM trials WHERE source_checkpoint IS NOT NULL"
        return {uuid for (uuid,) in self._databases.of(experiment_id).rows(sql)}


def _smaller_is_better(database: Database) -> bool:
    with database.decoding():
        return bool(
            convert(database.once("SELECT smaller_is_better FROM experiment")[0], _flag.type)
        )


def _trial(database: Database, row: Row) -> TrialRow:
    with database.decoding():
        id, request, hparams, *rest = convert(row, _row.type)
        return TrialRow(id, database.id, request, load_object(hparams), *rest)
