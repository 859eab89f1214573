"""Trials: what an experiment has searched so far."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._index import Index
from det_driver.store._records import TrialRow, TrialState
from det_driver.store._schema import assignments, dump, load

_COLUMNS = (
    "id, request, hparams, seed, state, batches, restarts, runs, progress, best_metric, best_batches, latest_metric, "
    "latest_checkpoint, source_checkpoint, started, ended, exit_reason"
)

_LARGEST_BLOCK = 1024
_WITHOUT_INDEX = 10**9
"""Where the index gives no numbers, those of an experiment's trials begin at so many times its own."""
_END = 2**63
_SPREAD = 2**31  # numbers times its golden section fall evenly into it
_LISTED = "det show EXPERIMENT lists an experiment's trials"


class TrialChanges(TypedDict, total=False):
    """What `update` may change; metrics, runs and checkpoints change the rest as they are recorded."""

    state: TrialState
    batches: int
    restarts: int
    progress: float
    ended: float | None
    exit_reason: str | None


_GOING = dump([str(state) for state in TrialState if not state.ended])
_CHANGED = (
    "state IN (SELECT value FROM json_each(:going)) OR id IN (SELECT value FROM json_each(:open)) OR request > :after"
)


class TrialsMark(NamedTuple):
    """An instant of an experiment's trials: those that had not ended, and the newest's `request`."""

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
        """Add a trial; `request` is the searcher's number for it, unique in the experiment."""
        database = self._databases.of(experiment_id)
        text = dump(hparams)
        with database.joined:
            memory = database.memory
            if memory.request is None:
                memory.request = database.rows("SELECT coalesce(max(request), -1) FROM trials")[0][0]
            id = self._free_id(database)
            write = database.put if memory.request < request < _END and 0 <= seed < _END else database.run
            try:
                write(
                    "INSERT INTO trials (id, request, hparams, seed, state, source_checkpoint) VALUES (?, ?, ?, ?, ?, ?)",
                    (id, request, text, seed, TrialState.QUEUED, source_checkpoint),
                )
            except sqlite3.IntegrityError as error:
                raise StoreError(f"experiment {experiment_id} has a trial {request} of its searcher already") from error
            memory.request = max(request, memory.request)
            memory.trials.add(id)
        unknown = (0, 0, 0, 0.0, None, None, None, None, source_checkpoint, None, None, None)
        return TrialRow(id, database.id, request, load(text), seed, TrialState.QUEUED, *unknown)

    def _free_id(self, database: Database) -> int:
        """A number that no other trial of the home has; the first blocks of them are small, as most experiments are."""
        next, last = database.memory.free or self._block(database)
        if next > last:
            given = database.rows("SELECT coalesce(sum(last - first + 1), 0) FROM blocks")[0][0]
            count = min(max(given, 1), _LARGEST_BLOCK)
            next = self._index.block(database.id, count) or database.id * _WITHOUT_INDEX + given
            last = next + count - 1
            database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", (next, last))
        database.memory.free = next + 1, last
        return next

    def _block(self, database: Database) -> tuple[int, int]:
        """The next number of the last block, and its last one."""
        block = database.row("SELECT first, last FROM blocks ORDER BY seq DESC LIMIT 1")
        if block is None:
            return 1, 0
        highest = database.rows("SELECT max(id) FROM trials WHERE id BETWEEN ? AND ?", block)[0][0]
        return (highest or block[0] - 1) + 1, block[1]

    def get(self, id: int) -> TrialRow:
        """The trial, or a StoreError where there is none."""
        database = self.of(id)
        return _trial(database, database.rows(f"SELECT {_COLUMNS} FROM trials WHERE id = ?", (id,))[0])

    def of(self, id: int, otherwise: str = _LISTED) -> Database:
        """The database of a trial's experiment, or a StoreError that ends with `otherwise` where there is no such trial."""
        return self._databases.of_trial(id, self._index.experiment_of, otherwise)

    def best(self, experiment_id: int) -> float | None:
        """The best value of the searcher's metric, found by its index."""
        database = self._databases.of(experiment_id)
        known = None if database.readonly else database.memory.best
        if known is None:
            best = "min" if _smaller_is_better(database) else "max"
            ((value,),) = database.rows(f"SELECT {best}(best_metric) FROM trials WHERE best_metric IS NOT NULL")
            known = database.memory.best = (None if value is None else float(value),)
        return known[0]

    def list(self, experiment_id: int, *, best_first: bool = False, limit: int | None = None) -> list[TrialRow]:
        """In order of creation, or by the searcher's metric with those that have none last."""
        database = self._databases.of(experiment_id)
        order = ""
        if best_first:
            order = f"best_metric IS NULL, best_metric {'ASC' if _smaller_is_better(database) else 'DESC'}, "
        rows = database.rows(
            f"SELECT {_COLUMNS} FROM trials ORDER BY {order}id LIMIT ?", (-1 if limit is None else limit,)
        )
        return [_trial(database, row) for row in rows]

    def changed(self, id: int, since: TrialsMark | None = None) -> tuple[Sequence[TrialRow], TrialsMark]:
        """An experiment's trials, or those that have changed since a mark, in order; and a mark of now.

        One query, which looks at those only that have not ended, had not ended at the mark, or are new since then.
        """
        known, after = since or TrialsMark({}, -1)
        sql = f"SELECT {_COLUMNS} FROM trials WHERE {'1' if since is None else _CHANGED} ORDER BY id"
        database = self._databases.of(id)
        found = database.rows(sql, {"going": _GOING, "open": dump([*known]), "after": after})
        rows = [_trial(database, row) for row in found]
        newest = max((row.request for row in rows), default=after)
        mark = TrialsMark({row.id: row for row in rows if not row.state.ended}, max(after, newest))
        return [row for row in rows if known.get(row.id) != row], mark

    def measured(self, experiment_id: int, most: int | None = None) -> Sequence[tuple[dict[str, Any], float]]:
        """The hyperparameters, and the best value of the searcher's metric, of the trials that have one, in order of creation.

        Of more than `most`, about as many are chosen, always the same, and none more likely than another in any regular grid.
        """
        database = self._databases.of(experiment_id)
        there = "FROM trials WHERE best_metric IS NOT NULL"
        count = database.rows(f"SELECT count(*) {there}")[0][0]
        chosen = _SPREAD if most is None or count <= most else _SPREAD * most // count
        sql = f"SELECT hparams, best_metric {there} AND id % {_SPREAD} * 1327217885 % {_SPREAD} < ? ORDER BY id"
        return [(load(hparams), best) for hparams, best in database.rows(sql, (chosen,))]

    def update(self, id: int, **changes: Unpack[TrialChanges]) -> None:
        """Change the columns named."""
        text, parameters = assignments(changes, TrialChanges)
        database = self.of(id)
        write = (
            database.run if changes.keys() & {"progress", "batches"} else database.put
        )  # which may be no such number
        write(f"UPDATE trials SET {text} WHERE id = ?", (*parameters, id))
        if "batches" in changes:
            database.memory.reports.pop(id, None)

    def sources(self, *, but: int | None = None) -> set[str]:
        """The uuids of the checkpoints that trials of any experiment, `but` one, start from."""
        sql = "SELECT DISTINCT source_checkpoint FROM trials WHERE source_checkpoint IS NOT NULL"
        return {uuid for _, (uuid,) in self._databases.ask(sql, but=but)}


def _smaller_is_better(database: Database) -> bool:
    return bool(database.once("SELECT smaller_is_better FROM experiment")[0])


def _trial(database: Database, row: Row) -> TrialRow:
    id, request, hparams, seed, state, *rest = row
    return TrialRow(id, database.id, request, load(hparams), seed, TrialState(state), *rest)
