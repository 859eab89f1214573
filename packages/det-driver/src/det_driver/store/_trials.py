"""Trials, and their runs: the attempts of a trial."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._metrics import Metrics
from det_driver.store._records import Run, TrialRow, TrialState
from det_driver.store._schema import assignments, dump, load

_COLUMNS = (
    "t.id, t.experiment_id, t.request, t.hparams, t.seed, t.state, t.batches, t.restarts, t.runs, t.progress, "
    "t.best_metric, t.best_batches, t.latest_metric, t.latest_checkpoint, t.source_checkpoint, t.started, t.ended, "
    "t.exit_reason"
)
_RUN_COLUMNS = "id, trial_id, number, first_batch, log_dir, started, ended, outcome, backend"

LOST = "LOST"


class TrialChanges(TypedDict, total=False):
    """What `update` may change; metrics, runs and checkpoints change the rest as they are recorded."""

    state: TrialState
    batches: int
    restarts: int
    progress: float
    latest_checkpoint: str | None
    source_checkpoint: str | None
    started: float | None
    ended: float | None
    exit_reason: str | None


class Trials:
    """The trials of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        experiment_id: int,
        request: int,
        hparams: Mapping[str, Any],
        seed: int,
        *,
        state: TrialState = TrialState.QUEUED,
        source_checkpoint: str | None = None,
    ) -> TrialRow:
        """Add a trial; `request` is the searcher's number for it, unique in the experiment."""
        try:
            row = self._database.row(
                "INSERT INTO trials (experiment_id, request, hparams, seed, state, source_checkpoint) "
                f"VALUES (?, ?, ?, ?, ?, ?) RETURNING {_COLUMNS.replace('t.', '')}",
                (experiment_id, request, dump(hparams), seed, state, source_checkpoint),
            )
        except sqlite3.IntegrityError as error:
            raise self._refused(experiment_id, request) from error
        assert row is not None  # RETURNING gives the row or raises
        return _trial(row)

    def _refused(self, experiment_id: int, request: int) -> StoreError:
        if self._database.row("SELECT 1 FROM experiments WHERE id = ?", (experiment_id,)) is None:
            return StoreError(f"no experiment {experiment_id}; create it before its trials")
        return StoreError(f"experiment {experiment_id} has a trial {request} of its searcher already")

    def get(self, id: int) -> TrialRow:
        """The trial, or a StoreError where there is none."""
        row = self._database.row(f"SELECT {_COLUMNS} FROM trials t WHERE id = ?", (id,))
        if row is None:
            raise _missing(id)
        return _trial(row)

    def list(self, experiment_id: int, *, best_first: bool = False, limit: int | None = None) -> list[TrialRow]:
        """In order of creation, or by the searcher's metric with those that have none last."""
        order = "t.best_metric IS NULL, CASE WHEN e.smaller_is_better THEN t.best_metric ELSE -t.best_metric END, "
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.experiment_id = :id "
            f"ORDER BY {order if best_first else ''} t.id LIMIT :limit",
            {"id": experiment_id, "limit": -1 if limit is None else limit},
        )
        return [_trial(row) for row in rows]

    def update(self, id: int, **changes: Unpack[TrialChanges]) -> None:
        """Change the columns named."""
        text, parameters = assignments(changes, TrialChanges)
        if self._database.run(f"UPDATE trials SET {text} WHERE id = ?", (*parameters, id)).rowcount == 0:
            raise _missing(id)

    def sources(self) -> set[str]:
        """The uuids of the checkpoints that trials of any experiment start from."""
        rows = self._database.rows("SELECT DISTINCT source_checkpoint FROM trials WHERE source_checkpoint IS NOT NULL")
        return {uuid for (uuid,) in rows}


def _missing(id: int) -> StoreError:
    return StoreError(f"no trial {id}; det show EXPERIMENT lists an experiment's trials")


def _trial(row: Row) -> TrialRow:
    id, experiment_id, request, hparams, seed, state, *rest = row
    return TrialRow(id, experiment_id, request, load(hparams), seed, TrialState(state), *rest)


class Runs:
    """The runs of a store's trials."""

    def __init__(self, database: Database, metrics: Metrics, home: Path) -> None:
        self._database = database
        self._metrics = metrics
        self._home = home

    def begin(self, trial_id: int, from_batches: int = 0, *, log_dir: Path | None = None) -> Run:
        """Begin the trial's next run at a position; what earlier runs reported past it is archived, to be done again.

        `log_dir` defaults to `<home>/experiments/<experiment>/trials/<trial>/run-<number>`; it is not made here.
        A run that an earlier driver left open ends as LOST.
        """
        now = time.time()
        with self._database.transaction():
            self._database.run(
                "UPDATE runs SET ended = ?, outcome = ? WHERE trial_id = ? AND ended IS NULL", (now, LOST, trial_id)
            )
            counted = self._database.row(
                "UPDATE trials SET runs = runs + 1, batches = ?, started = coalesce(started, ?) "
                "WHERE id = ? RETURNING experiment_id, runs",
                (from_batches, now, trial_id),
            )
            if counted is None:
                raise StoreError(f"no trial {trial_id}; create it before its runs")
            experiment_id, number = counted
            self._metrics.archive_past(trial_id, from_batches)
            place = log_dir or Path("experiments", str(experiment_id), "trials", str(trial_id), f"run-{number}")
            row = self._database.row(
                "INSERT INTO runs (trial_id, number, first_batch, log_dir, started) VALUES (?, ?, ?, ?, ?) "
                f"RETURNING {_RUN_COLUMNS}",
                (trial_id, number, from_batches, str(place), now),
            )
            assert row is not None  # RETURNING gives the row or raises
            return self._run(row)

    def end(self, id: int, outcome: str) -> None:
        """Close a run with one word that says how it ended."""
        if (
            self._database.run(
                "UPDATE runs SET ended = ?, outcome = ? WHERE id = ?", (time.time(), outcome, id)
            ).rowcount
            == 0
        ):
            raise StoreError(f"no run {id}; begin it before it ends")

    def chose(self, id: int, backend: str) -> None:
        """Note what reduces the gradients of a run with several ranks."""
        self._database.run("UPDATE runs SET backend = ? WHERE id = ?", (backend, id))

    def get(self, id: int) -> Run:
        """The run, or a StoreError where there is none."""
        row = self._database.row(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (id,))
        if row is None:
            raise StoreError(f"no run {id}; det show lists a trial's runs")
        return self._run(row)

    def list(self, trial_id: int) -> list[Run]:
        """The trial's runs, the first one first."""
        rows = self._database.rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE trial_id = ? ORDER BY number", (trial_id,))
        return [self._run(row) for row in rows]

    def _run(self, row: Row) -> Run:
        id, trial_id, number, first_batch, log_dir, *rest = row
        return Run(id, trial_id, number, first_batch, self._home / log_dir, *rest)
