"""The runs of trials, and what they ran in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from det_core.errors import StoreError
from det_core.origin import digest
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._memory import Reports
from det_driver.store._metrics import Metrics
from det_driver.store._records import Run, TrialState
from det_driver.store._schema import dump, load, storable
from det_driver.store._trials import Trials

_RUN_COLUMNS = "id, trial_id, number, first_batch, log_dir, started, ended, outcome, backend, reason, host, origin"


class Runs:
    """The runs of trials; an experiment's are numbered for themselves, so that its lock says whose a number is."""

    def __init__(self, databases: Databases, trials: Trials, metrics: Metrics) -> None:
        self._databases = databases
        self._trials = trials
        self._metrics = metrics

    def begin(self, trial_id: int, from_batches: int = 0, *, first: bool = False, host: str | None = None) -> Run:
        """Begin the trial's next run at a position; what earlier runs reported past it is archived, to be done again.

        Its logs belong in `trials/<trial>/run-<number>` in the experiment's directory, which is not made here. A run that
        an earlier driver left open ends as LOST. `first` says that there was none before, for certain.
        """
        now = time.time()
        database = self._trials.of(trial_id, "create it before its runs")
        memory = database.memory
        with database.joined:
            number = 1 if first else self._after_others(database, trial_id, from_batches, now)
            if memory.run is None:  # its number is that of no run that has been deleted
                memory.run = database.rows("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'runs'")[0][
                    0
                ]
            id = memory.run = memory.run + 1
            row = (id, trial_id, number, from_batches, f"trials/{trial_id}/run-{number}", now)
            database.put(
                "UPDATE trials SET state = ?, runs = ?, batches = ?, started = coalesce(started, ?) WHERE id = ?",
                (TrialState.RUNNING, number, from_batches, now, trial_id),
            )
            database.put(
                "INSERT INTO runs (id, trial_id, number, first_batch, log_dir, started, host) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, host),
            )
            memory.runs[id] = trial_id
            if first:
                memory.reports[trial_id] = Reports(-1, from_batches, None, whole=True)
        return self._run(database, (*row, None, None, None, None, host))

    def _after_others(self, database: Database, trial_id: int, from_batches: int, now: float) -> int:
        """The number of a trial's next run, once nothing of those before it is in its way."""
        database.run(
            "UPDATE runs SET ended = ?, outcome = 'LOST' WHERE trial_id = ? AND ended IS NULL", (now, trial_id)
        )
        self._metrics.archive_past(trial_id, from_batches)
        return int(database.rows("SELECT runs + 1 FROM trials WHERE id = ?", (trial_id,))[0][0])

    def end(self, id: int, outcome: str, reason: str | None = None) -> None:
        """Close a run with one word that says how it ended, and a sentence that says why it failed."""
        database = self._databases.held()
        with database.joined:
            trial = database.memory.runs.pop(id, None)
            if trial is None and (row := database.row("SELECT trial_id FROM runs WHERE id = ?", (id,))):
                (trial,) = row
            if trial is None:
                raise StoreError(f"no run {id}; begin it before it ends")
            sql = "UPDATE runs SET ended = ?, outcome = ?, reason = ? WHERE id = ?"
            database.put(sql, (time.time(), outcome, storable(reason), id))
            self._metrics.pack(trial)

    def chose(self, id: int, backend: str) -> None:
        """Note what reduces the gradients of a run with several ranks."""
        self._databases.held().run("UPDATE runs SET backend = ? WHERE id = ?", (backend, id))

    def came_from(self, id: int, origin: Mapping[str, Any]) -> None:
        """Note what a run runs in; what many have in common is kept once."""
        database, name = self._databases.held(), digest(origin)
        with database.joined:
            database.put("INSERT OR IGNORE INTO origins (digest, facts) VALUES (?, ?)", (name, dump(origin)))
            database.put("UPDATE runs SET origin = ? WHERE id = ?", (name, id))

    def origins(self, experiment_id: int) -> dict[str, dict[str, Any]]:
        """What the runs of an experiment ran in, each under the name that `Run.origin` has."""
        rows = self._databases.of(experiment_id).rows("SELECT digest, facts FROM origins")
        return {name: load(facts) for name, facts in rows}

    def heard(self, id: int, links: Mapping[int, int]) -> None:
        """Note the number of the newest word that was taken from each connection of a run's workers."""
        self._databases.held().put("UPDATE runs SET heard = ? WHERE id = ?", (dump(links), id))

    def heard_of(self, id: int) -> dict[int, int]:
        """The numbers of the newest words that were taken of a run."""
        row = self._databases.held().row("SELECT heard FROM runs WHERE id = ?", (id,))
        return {int(link): number for link, number in load(row[0]).items()} if row else {}

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

    def open(self, experiment_id: int) -> Sequence[Run]:
        """The runs of an experiment of which nobody has said that they have ended."""
        database = self._databases.of(experiment_id)
        rows = database.rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE ended IS NULL ORDER BY id")
        return [self._run(database, row) for row in rows]

    def _run(self, database: Database, row: Row) -> Run:
        id, trial_id, number, first_batch, log_dir, *rest = row
        return Run(id, trial_id, number, first_batch, self._databases.directory(database.id) / log_dir, *rest)
