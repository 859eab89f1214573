"""The runs of trials, and the environments of the runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from det_core.errors import StoreError
from det_core.support.origin import digest
from det_driver.store._database import Database, Row
from det_driver.store._databases import Databases
from det_driver.store._memory import Reports
from det_driver.store._metrics import Metrics
from det_driver.store._records import Run, RunSpan, TrialState
from det_driver.store._schema import convert, dump, load_object, storable
from det_driver.store._trials import Trials

_RUN_COLUMNS = (
    "id, trial_id, number, first_batch, log_dir, started, ended, outcome, backend, reason, host,"
    " origin"
)

# The last that is known of a run `r` whose driver has died.
LAST_SEEN = (
    "max(r.started, coalesce((SELECT max(time) FROM metrics m WHERE m.trial_id = r.trial_id AND"
    " m.run_id = r.id), 0), coalesce((SELECT max(created) FROM checkpoints c WHERE c.trial_id ="
    " r.trial_id AND c.run_id = r.id), 0))"
)

_links = msgspec.json.Decoder(dict[str, int])
_row = msgspec.json.Decoder(tuple[
    int, int, int, int, str, float, float | None, str | None, str | None, str | None, str | None,
    str | None,
])  # fmt: skip


class Runs:
    """The runs of trials.

    Each experiment has its own ids of runs. The experiment whose lock is held resolves an id.
    """

    def __init__(self, databases: Databases, trials: Trials, metrics: Metrics) -> None:
        self._databases = databases
        self._trials = trials
        self._metrics = metrics

    def begin(
        self,
        trial_id: int,
        from_batches: int = 0,
        *,
        first: bool = False,
        host: str | None = None,
        at: float | None = None,
    ) -> Run:
        """Begin the trial's next run at a position.

        Reports of earlier runs after the position are archived, as this run reports them again.
        Logs go to `trials/<trial>/run-<number>` in the experiment's directory, which is not made
        here. A run that an earlier driver left open ends as LOST when it was last seen. With
        `first` the caller asserts that there was no run before. `at` is when it began, by default
        now.
        """
        now = time.time() if at is None else at
        database = self._trials.of(trial_id, "create it before its runs")
        memory = database.memory
        with database.joined:
            number = 1 if first else self._after_others(database, trial_id, from_batches)
            # `sqlite_sequence` counts deleted runs, too, so that no id is used again.
            if memory.run is None:
                sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'runs'"
                ((memory.run,),) = database.typed(tuple[int], sql)
            id = memory.run = memory.run + 1
            row = (id, trial_id, number, from_batches, f"trials/{trial_id}/run-{number}", now)
            database.put(
                "UPDATE trials SET state = ?, runs = ?, batches = ?, started = coalesce(started, ?)"
                " WHERE id = ?",
                (TrialState.RUNNING, number, from_batches, now, trial_id),
            )
            database.put(
                "INSERT INTO runs (id, trial_id, number, first_batch, log_dir, started, host)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, host),
            )
            memory.runs[id] = trial_id
            if first:
                memory.reports[trial_id] = Reports(-1, from_batches, None, whole=True)
        return self._run(database, (*row, None, None, None, None, host, None))

    def _after_others(self, database: Database, trial_id: int, from_batches: int) -> int:
        """Return the number of a trial's next run.

        This ends the trial's open runs, and archives their reports after the position.
        """
        lost = (
            # The names are constants of ours.
            f"UPDATE runs AS r SET ended = {LAST_SEEN}, outcome = 'LOST'"  # nosec B608
            " WHERE trial_id = ? AND ended IS NULL"
        )
        database.run(lost, (trial_id,))
        self._metrics.archive_past(trial_id, from_batches)
        ((number,),) = database.typed(
            tuple[int], "SELECT runs + 1 FROM trials WHERE id = ?", (trial_id,)
        )
        return int(number)

    def end(
        self, id: int, outcome: str, reason: str | None = None, *, ended: float | None = None
    ) -> None:
        """End a run. `outcome` is one word, and `reason` is a sentence that says why it failed.

        `ended` is when it ended, by default now.
        """
        database = self._databases.held()
        with database.joined:
            trial = database.memory.runs.pop(id, None)
            if trial is None and (
                row := database.row("SELECT trial_id FROM runs WHERE id = ?", (id,))
            ):
                (trial,) = row
            if trial is None:
                raise StoreError(f"no run {id}; begin it before it ends")
            sql = "UPDATE runs SET ended = ?, outcome = ?, reason = ? WHERE id = ?"
            ended = time.time() if ended is None else ended
            database.put(sql, (ended, outcome, storable(reason), id))
            self._metrics.pack(trial)

    def last_seen(self, id: int) -> float:
        """Return when a run was last known to run: at its last report, checkpoint or its start."""
        # The names are constants of ours.
        sql = f"SELECT {LAST_SEEN} FROM runs r WHERE id = ?"  # nosec B608
        ((seen,),) = self._databases.held().typed(tuple[float], sql, (id,))
        return float(seen)

    def chose(self, id: int, backend: str) -> None:
        """Record the backend that reduces the gradients of a run with several ranks."""
        self._databases.held().run("UPDATE runs SET backend = ? WHERE id = ?", (backend, id))

    def record_origin(self, id: int, origin: Mapping[str, Any]) -> None:
        """Record the environment of a run. Runs with the same environment share one row."""
        database, name = self._databases.held(), digest(origin)
        with database.joined:
            database.put(
                "INSERT OR IGNORE INTO origins (digest, facts) VALUES (?, ?)", (name, dump(origin))
            )
            database.put("UPDATE runs SET origin = ? WHERE id = ?", (name, id))

    def origins(self, experiment_id: int) -> dict[str, dict[str, Any]]:
        """Return the environments of an experiment's runs, by the name in `Run.origin`."""
        database = self._databases.of(experiment_id)
        rows = database.typed(tuple[str, str], "SELECT digest, facts FROM origins")
        with database.decoding():
            return {name: load_object(facts) for name, facts in rows}

    def set_acked(self, id: int, links: Mapping[int, int]) -> None:
        """Record the newest received sequence number of each connection of a run's workers."""
        self._databases.held().put("UPDATE runs SET heard = ? WHERE id = ?", (dump(links), id))

    def read_acked(self, id: int) -> dict[int, int]:
        """Return the newest received sequence number of each connection of a run's workers."""
        database = self._databases.held()
        row = database.row("SELECT heard FROM runs WHERE id = ?", (id,))
        with database.decoding():
            links = convert(load_object(row[0]), _links.type) if row else {}
            return {int(link): number for link, number in links.items()}

    def get(self, id: int) -> Run:
        """Return a run of the experiment whose lock is held. Raises StoreError if there is none."""
        database = self._databases.held()
        # Names of tables and columns are constants of ours; values are parameters.
        row = database.row(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", (id,))  # nosec B608
        if row is None:
            raise StoreError(f"no run {id}; det show lists a trial's runs")
        return self._run(database, row)

    def read(self, ids: Iterable[int]) -> dict[int, Run]:
        """Return those runs of the experiment whose lock is held that exist, in one query."""
        database = self._databases.held()
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"SELECT {_RUN_COLUMNS} FROM runs WHERE id IN (SELECT value FROM json_each(?))"  # nosec B608
        rows = database.rows(sql, (dump([*ids]),))
        return {row[0]: self._run(database, row) for row in rows}

    def list(self, trial_id: int) -> list[Run]:
        """Return the trial's runs, the first one first."""
        database = self._trials.of(trial_id)
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"SELECT {_RUN_COLUMNS} FROM runs WHERE trial_id = ? ORDER BY number"  # nosec B608
        rows = database.rows(sql, (trial_id,))
        return [self._run(database, row) for row in rows]

    def open(self, experiment_id: int) -> Sequence[Run]:
        """Return the runs of an experiment that have no recorded end."""
        database = self._databases.of(experiment_id)
        # Names of tables and columns are constants of ours; values are parameters.
        rows = database.rows(f"SELECT {_RUN_COLUMNS} FROM runs WHERE ended IS NULL ORDER BY id")  # nosec B608
        return [self._run(database, row) for row in rows]

    def spans(
        self, experiment_id: int, since: float, until: float, *, driven: bool
    ) -> Sequence[RunSpan]:
        """Return when runs of an experiment ran between two times, in unix seconds.

        A run that has not ended lasts until now where the experiment is `driven`, else until it was
        last seen.
        """
        sql = (
            # The names are constants of ours.
            "SELECT max(r.started, ?2), min(coalesce(r.ended, CASE WHEN ?4 THEN ?1 ELSE"  # nosec B608
            f" {LAST_SEEN} END), ?3), t.state FROM runs r JOIN trials t ON t.id = r.trial_id"
            " WHERE r.started < ?3 AND coalesce(r.ended, ?1) > ?2"
        )
        rows = self._databases.of(experiment_id).typed(
            tuple[float, float, TrialState], sql, (time.time(), since, until, driven)
        )
        return [RunSpan(*row) for row in rows if row[1] > row[0]]

    def _run(self, database: Database, row: Row) -> Run:
        with database.decoding():
            id, trial_id, number, first_batch, log_dir, *rest = convert(row, _row.type)
        place = self._databases.directory(database.id) / log_dir
        return Run(id, trial_id, number, first_batch, place, *rest)
