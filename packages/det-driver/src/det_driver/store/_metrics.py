"""Metrics: a history for each trial and group, without gaps and repeats.

Reports of all groups but validations are packed after some time.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from det_driver.store._database import Database
from det_driver.store._databases import Databases
from det_driver.store._history import CHUNK, FEW, history, pack_rows, series, unpack_from
from det_driver.store._memory import Reports
from det_driver.store._records import Metric
from det_driver.store._schema import dump

VALIDATION = "validation"
_END = 2**63
_PROGRESS = "UPDATE trials SET progress = ? WHERE id = ?"


class Metrics:
    """The metrics of trials. A validation updates the best and the latest value of its trial."""

    def __init__(self, databases: Databases, of_trial: Callable[[int, str], Database]) -> None:
        self._databases = databases
        self._of_trial = of_trial

    def report(
        self,
        trial_id: int,
        run_id: int,
        group: str,
        batches: int,
        values: Mapping[str, Any],
        *,
        progress: float | None = None,
        at: float | None = None,
    ) -> None:
        """Record the values of a group ("training", "validation" or any other) at a position.

        `progress` is the fraction of the trial that is done, if that is known. `at` is when it was
        reported, by default now.

        An earlier report of the same trial, group and position is archived. If the searcher's
        metric is not a number, it counts as missing. Reports of groups other than validations are
        packed when there are enough for a chunk.
        """
        database = self._of_trial(trial_id, "create it before its metrics")
        metric = searcher_metric_of(database, values) if group == VALIDATION else None
        now = time.time() if at is None else at
        row = (trial_id, run_id, group, batches, now, dump(values), metric)
        with database.joined:
            known = database.memory.reports.get(trial_id) or _known(database, trial_id)
            if not known.last.get(group, known.floor) < batches < _END:
                self._insert_again(database, row)
                if progress is not None:
                    database.run(_PROGRESS, (progress, trial_id))
                del database.memory.reports[trial_id]
                return
            database.put(_INSERT, row)
            known.last[group] = batches
            known.batches = max(known.batches, batches)
            if group == VALIDATION:
                _advance(database, trial_id, known, metric, batches)
                if progress is not None:
                    database.put(_PROGRESS, (progress, trial_id))
            else:
                database.put(
                    "UPDATE trials SET batches = ?, progress = coalesce(?, progress) WHERE id = ?",
                    (known.batches, progress, trial_id),
                )
                self._pack(database, trial_id, group, known)

    def _insert_again(self, database: Database, row: tuple[Any, ...]) -> None:
        """Record a report that is not after all earlier ones."""
        trial_id, _, group, batches, *_, metric = row
        if group != VALIDATION and database.row(_PACKED, (trial_id, group, batches)):
            unpack_from(database, trial_id, batches, group)
        again = _archive(database, "batches = ? AND kind = ?", trial_id, batches, group)
        database.run(_INSERT, row)
        database.run(
            "UPDATE trials SET batches = max(batches, ?) WHERE id = ?", (batches, trial_id)
        )
        if group == VALIDATION:
            rank(database, trial_id)
            if not again:
                database.run("UPDATE trials SET latest_metric = ? WHERE id = ?", (metric, trial_id))

    def _pack(self, database: Database, trial_id: int, group: str, known: Reports) -> None:
        """Pack the reports of a group when there are enough for a chunk."""
        known.unpacked[group] = known.unpacked.get(group, 0) + 1
        if known.unpacked[group] >= CHUNK:
            known.unpacked[group] = 0
            pack_rows(database, trial_id, group, CHUNK)

    def pack(self, trial_id: int) -> None:
        """Pack the rest of a trial's reports after a run, if there are enough of them."""
        database = self._of_trial(trial_id, "create it before its metrics")
        known = database.memory.reports.pop(trial_id, None)
        if (
            known is not None
            and known.whole
            and all(count < FEW for count in known.unpacked.values())
        ):
            return
        sql = (
            "SELECT kind FROM metrics WHERE trial_id = ? AND archived = 0 AND kind <> ? GROUP BY"
            " kind HAVING count(*) >= ?"
        )
        with database.joined:
            for (kind,) in database.rows(sql, (trial_id, VALIDATION, FEW)):
                pack_rows(database, trial_id, kind, FEW)

    def archive_past(self, trial_id: int, batches: int) -> None:
        """Archive the reports after a position, from which the trial trains again."""
        database = self._of_trial(trial_id, "create it before its metrics")
        with database.transaction():
            whole = (
                "UPDATE chunks SET archived = id WHERE trial_id = ? AND archived = 0 AND first > ?"
            )
            database.run(whole, (trial_id, batches))
            unpack_from(database, trial_id, batches + 1)
            if _archive(database, "batches > ?", trial_id, batches):
                rank(database, trial_id)
            database.memory.reports.pop(trial_id, None)

    def groups(self, experiment_id: int) -> list[str]:
        """Return the groups that an experiment's trials have reported, in alphabetical order."""
        sql = (
            "SELECT kind FROM metrics WHERE archived = 0 UNION SELECT kind FROM chunks WHERE"
            " archived = 0 ORDER BY kind"
        )
        rows = self._databases.of(experiment_id).typed(tuple[str], sql)
        return [kind for (kind,) in rows]

    def series(
        self,
        trial_id: int,
        group: str,
        name: str,
        *,
        along: str = "batches",
        first: int = 0,
        last: int | None = None,
    ) -> tuple[array[float], array[float]]:
        """Return the positions of a trial's reports and their values of one metric, in order.

        A value that is not a number becomes NaN. `along` is "batches", "time" (Unix seconds) or
        another metric. Some reports outside the range may be included.
        """
        database = self._of_trial(trial_id, "det show EXPERIMENT lists an experiment's trials")
        return series(database, trial_id, group, name, along, first, last)

    def read(
        self,
        *,
        trial_id: int | None = None,
        experiment_id: int | None = None,
        group: str | None = None,
        archived: bool = False,
        first: int = 0,
        last: int | None = None,
    ) -> Iterator[Metric]:
        """Stream the reports of a trial, or of all trials of an experiment.

        They are ordered by trial, position and group. Only the positions from `first` to `last` are
        read. `archived=True` returns the archived reports instead. The reports come in pages. For a
        consistent view while a driver writes, read inside a reader's `transaction()`.
        """
        if experiment_id is None and trial_id is not None:
            database = self._of_trial(trial_id, "det show EXPERIMENT lists an experiment's trials")
            return history(database, trial_id, group, archived, first, last)
        if experiment_id is None or trial_id is not None:
            raise TypeError("give trial_id or experiment_id")
        database = self._databases.of(experiment_id)
        ids = database.rows("SELECT id FROM trials ORDER BY id")
        return chain.from_iterable(
            history(database, id, group, archived, first, last) for (id,) in ids
        )


def _archive(database: Database, which: str, trial_id: int, *parameters: Any) -> int:
    sql = (
        # Conditions are constants of this module; values are parameters.
        f"UPDATE metrics SET archived = id WHERE trial_id = ? AND archived = 0 AND {which}"  # nosec B608
    )
    return database.run(sql, (trial_id, *parameters))


def searcher_metric_of(database: Database, values: Mapping[str, Any]) -> float | None:
    """Return the searcher's metric among the values of a validation, or None if it is no number."""
    value = values.get(database.once(_RANKED_BY)[0])
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else None


def _known(database: Database, trial_id: int) -> Reports:
    """Read the state of a trial's reports into the cache.

    No report is after the trial's position.
    """
    sql = "SELECT batches, best_metric FROM trials WHERE id = ?"
    ((batches, best),) = database.typed(tuple[int, float | None], sql, (trial_id,))
    known = database.memory.reports[trial_id] = Reports(batches, batches, best, whole=False)
    return known


def _advance(
    database: Database, trial_id: int, known: Reports, metric: float | None, batches: int
) -> None:
    """Update a trial with its newest validation."""
    smaller_is_better = database.once(_RANKED_BY)[1]

    def better(than: float | None) -> bool:
        return metric is not None and (
            than is None or (metric < than if smaller_is_better else metric > than)
        )

    if better(known.best):
        known.best = metric
        sql = (
            "UPDATE trials SET batches = ?, latest_metric = ?, best_metric = ?, best_batches = ?"
            " WHERE id = ?"
        )
        database.put(sql, (known.batches, metric, metric, batches, trial_id))
        if (best := database.memory.best) is not None and better(best[0]):
            database.memory.best = (metric,)
    else:
        database.put(
            "UPDATE trials SET batches = ?, latest_metric = ? WHERE id = ?",
            (known.batches, metric, trial_id),
        )


def rank(database: Database, trial_id: int) -> None:
    """Find the best and the newest validation of a trial again."""
    database.run(_RANK, {"trial": trial_id})
    database.memory.best = None


_RANKED_BY = "SELECT metric, smaller_is_better FROM experiment"

_PACKED = (
    "SELECT 1 FROM chunks WHERE trial_id = ? AND kind = ? AND archived = 0 AND last >= ? LIMIT 1"
)

_INSERT = """
INSERT INTO metrics (trial_id, run_id, kind, batches, time, data, metric)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""

_RANK = """
WITH validations AS (
    SELECT batches, m.metric, smaller_is_better
    FROM metrics m, experiment
    WHERE trial_id = :trial AND kind = 'validation' AND m.archived = 0),
best AS (
    SELECT metric, batches FROM validations WHERE metric IS NOT NULL
    ORDER BY CASE WHEN smaller_is_better THEN metric ELSE -metric END, batches LIMIT 1)
UPDATE trials SET
    best_metric = (SELECT metric FROM best), best_batches = (SELECT batches FROM best),
    latest_metric = (SELECT metric FROM validations ORDER BY batches DESC LIMIT 1)
WHERE id = :trial
"""
