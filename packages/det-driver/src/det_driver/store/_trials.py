"""Trials, and their runs: the attempts of a trial."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._index import Index
from det_driver.store._metrics import Metrics
from det_driver.store._records import Run, TrialRow, TrialState
from det_driver.store._schema import assignments, dump, load

_COLUMNS = (
    "id, request, hparams, seed, state, batches, restarts, runs, progress, best_metric, best_batches, latest_metric, "
    "latest_checkpoint, source_checkpoint, started, ended, exit_reason"
)
_RUN_COLUMNS = "id, trial_id, number, first_batch, log_dir, started, ended, outcome, backend"

_LARGEST_BLOCK = 1024
_WITHOUT_INDEX = 10**9
"""Where the index gives no numbers, those of an experiment's trials begin at so many times its own."""
_LISTED = "det show EXPERIMENT lists an experiment's trials"


class TrialChanges(TypedDict, total=False):
    """What `update` may change; metrics, runs and checkpoints change the rest as they are recorded."""

    state: TrialState
    batches: int
    restarts: int
    progress: float
    ended: float | None
    exit_reason: str | None


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
        values = (request, dump(hparams), seed, TrialState.QUEUED, source_checkpoint)
        try:
            with database.transaction():
                rows = database.rows(
                    "INSERT INTO trials (id, request, hparams, seed, state, source_checkpoint) "
                    f"VALUES (?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS}",
                    (self._free_id(database), *values),
                )
        except sqlite3.IntegrityError as error:
            raise StoreError(f"experiment {experiment_id} has a trial {request} of its searcher already") from error
        return _trial(database, rows[0])

    def _free_id(self, database: Database) -> int:
        """A number that no other trial of the home has; the first blocks of them are small, as most experiments are."""
        last = database.row("SELECT first, last FROM blocks ORDER BY seq DESC LIMIT 1")
        if last is not None:
            highest = "SELECT max(id) FROM trials WHERE id BETWEEN ? AND ?"
            next = (database.rows(highest, last)[0][0] or last[0] - 1) + 1
            if next <= last[1]:
                return int(next)
        given = database.rows("SELECT coalesce(sum(last - first + 1), 0) FROM blocks")[0][0]
        count = min(max(given, 1), _LARGEST_BLOCK)
        first = self._index.block(database.id, count) or database.id * _WITHOUT_INDEX + given
        database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", (first, first + count - 1))
        return int(first)

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
        best = "min" if _smaller_is_better(database) else "max"
        ((value,),) = database.rows(f"SELECT {best}(best_metric) FROM trials WHERE best_metric IS NOT NULL")
        return None if value is None else float(value)

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

    def update(self, id: int, **changes: Unpack[TrialChanges]) -> None:
        """Change the columns named."""
        text, parameters = assignments(changes, TrialChanges)
        self.of(id).run(f"UPDATE trials SET {text} WHERE id = ?", (*parameters, id))

    def sources(self, *, but: int | None = None) -> set[str]:
        """The uuids of the checkpoints that trials of any experiment, `but` one, start from."""
        sql = "SELECT DISTINCT source_checkpoint FROM trials WHERE source_checkpoint IS NOT NULL"
        return {uuid for _, (uuid,) in self._databases.ask(sql, but=but)}


def _smaller_is_better(database: Database) -> bool:
    return bool(database.rows("SELECT smaller_is_better FROM experiment")[0][0])


def _trial(database: Database, row: Row) -> TrialRow:
    id, request, hparams, seed, state, *rest = row
    return TrialRow(id, database.id, request, load(hparams), seed, TrialState(state), *rest)


class Runs:
    """The runs of trials; an experiment's are numbered for themselves, so that its lock says whose a number is."""

    def __init__(self, databases: Databases, trials: Trials, metrics: Metrics) -> None:
        self._databases = databases
        self._trials = trials
        self._metrics = metrics

    def begin(self, trial_id: int, from_batches: int = 0) -> Run:
        """Begin the trial's next run at a position; what earlier runs reported past it is archived, to be done again.

        Its logs belong in `trials/<trial>/run-<number>` in the experiment's directory, which is not made here. A run that
        an earlier driver left open ends as LOST.
        """
        now = time.time()
        database = self._trials.of(trial_id, "create it before its runs")
        with database.transaction():
            database.run(
                "UPDATE runs SET ended = ?, outcome = 'LOST' WHERE trial_id = ? AND ended IS NULL", (now, trial_id)
            )
            (number,) = database.rows(
                "UPDATE trials SET runs = runs + 1, batches = ?, started = coalesce(started, ?) WHERE id = ? RETURNING runs",
                (from_batches, now, trial_id),
            )[0]
            self._metrics.archive_past(trial_id, from_batches)
            rows = database.rows(
                "INSERT INTO runs (trial_id, number, first_batch, log_dir, started) VALUES (?, ?, ?, ?, ?) "
                f"RETURNING {_RUN_COLUMNS}",
                (trial_id, number, from_batches, f"trials/{trial_id}/run-{number}", now),
            )
            return self._run(database, rows[0])

    def end(self, id: int, outcome: str) -> None:
        """Close a run with one word that says how it ended."""
        sql = "UPDATE runs SET ended = ?, outcome = ? WHERE id = ?"
        if self._databases.held().run(sql, (time.time(), outcome, id)) == 0:
            raise StoreError(f"no run {id}; begin it before it ends")

    def chose(self, id: int, backend: str) -> None:
        """Note what reduces the gradients of a run with several ranks."""
        self._databases.held().run("UPDATE runs SET backend = ? WHERE id = ?", (backend, id))

    def get(self, id: int) -> Run:
        """The run of the experiment whose lock is held, or a StoreError where there is none."""
        database = self._databases.held()
        row = database.row(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (id,))
        if row is None:
            raise StoreError(f"no run {id}; det show lists a trial's runs")
        return self._run(database, row)

    def list(self, trial_id: int) -> list[Run]:
        """The trial's runs, the first one first."""
        database = self._trials.of(trial_id)
        rows = database.rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE trial_id = ? ORDER BY number", (trial_id,))
        return [self._run(database, row) for row in rows]

    def _run(self, database: Database, row: Row) -> Run:
        id, trial_id, number, first_batch, log_dir, *rest = row
        return Run(id, trial_id, number, first_batch, self._databases.directory(database.id) / log_dir, *rest)
