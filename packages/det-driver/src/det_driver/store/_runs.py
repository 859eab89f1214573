"""Runs: the attempts of a trial."""

from __future__ import annotations

import time
from pathlib import Path

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._metrics import Metrics
from det_driver.store._records import Run

_COLUMNS = "id, trial_id, number, first_batch, log_dir, started, ended, outcome, backend"

LOST = "LOST"


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
                f"RETURNING {_COLUMNS}",
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
        row = self._database.row(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (id,))
        if row is None:
            raise StoreError(f"no run {id}; det show lists a trial's runs")
        return self._run(row)

    def list(self, trial_id: int) -> list[Run]:
        """The trial's runs, the first one first."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM runs WHERE trial_id = ? ORDER BY number", (trial_id,))
        return [self._run(row) for row in rows]

    def _run(self, row: Row) -> Run:
        id, trial_id, number, first_batch, log_dir, *rest = row
        return Run(id, trial_id, number, first_batch, self._home / log_dir, *rest)
