"""Metrics: a history per trial and group, without a gap and without a repeat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from det_driver.store._database import Database
from det_driver.store._databases import Databases
from det_driver.store._records import Metric
from det_driver.store._schema import dump, load

PAGE = 2000
VALIDATION = "validation"


class Metrics:
    """The metrics of trials; validations keep the trials' best and latest values up to date."""

    def __init__(self, databases: Databases, of_trial: Callable[[int, str], Database]) -> None:
        self._databases = databases
        self._of_trial = of_trial

    def report(self, trial_id: int, run_id: int, group: str, batches: int, values: Mapping[str, Any]) -> None:
        """Record the values of a group ("training", "validation", any) at a position.

        An earlier report of the same trial, group and position is archived. A searcher's metric that is no number counts as none.
        """
        database = self._of_trial(trial_id, "create it before its metrics")
        with database.transaction():
            again = _archive(database, "batches = ? AND kind = ?", trial_id, batches, group)
            metric = _searcher_metric(database, values) if group == VALIDATION else None
            database.run(
                "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data, metric) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (trial_id, run_id, group, batches, time.time(), dump(values), metric),
            )
            database.run("UPDATE trials SET batches = max(batches, ?) WHERE id = ?", (batches, trial_id))
            if group == VALIDATION and again:
                database.run(_RANK, {"trial": trial_id})
            elif group == VALIDATION:
                database.run(_ADVANCE, {"trial": trial_id, "batches": batches, "metric": metric})

    def archive_past(self, trial_id: int, batches: int) -> None:
        """Archive what was reported after a position: the trial goes back there and does it again."""
        database = self._of_trial(trial_id, "create it before its metrics")
        with database.transaction():
            if _archive(database, "batches > ?", trial_id, batches):
                database.run(_RANK, {"trial": trial_id})

    def read(
        self,
        *,
        trial_id: int | None = None,
        experiment_id: int | None = None,
        group: str | None = None,
        archived: bool = False,
    ) -> Iterator[Metric]:
        """Stream those of a trial or of an experiment's trials, by trial, position and group.

        `archived=True` gives those that were archived instead. Rows come in pages; for one instant's view while a
        driver writes, read inside a reader's `transaction()`.
        """
        if experiment_id is None and trial_id is not None:
            database = self._of_trial(trial_id, "det show EXPERIMENT lists an experiment's trials")
            return _of_trial(database, trial_id, group, archived)
        if experiment_id is None or trial_id is not None:
            raise TypeError("give trial_id or experiment_id")
        database = self._databases.of(experiment_id)
        ids = database.rows("SELECT id FROM trials ORDER BY id")
        return chain.from_iterable(_of_trial(database, id, group, archived) for (id,) in ids)


def _archive(database: Database, which: str, trial_id: int, *parameters: Any) -> int:
    return database.run(
        f"UPDATE metrics SET archived = id WHERE trial_id = ? AND archived = 0 AND {which}", (trial_id, *parameters)
    )


def _searcher_metric(database: Database, values: Mapping[str, Any]) -> float | None:
    value = values.get(database.rows("SELECT metric FROM experiment")[0][0])
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else None


def _of_trial(database: Database, trial_id: int, group: str | None, archived: bool) -> Iterator[Metric]:
    sql = _PAGE.format(
        archived="archived > 0" if archived else "archived = 0", group="" if group is None else "AND kind = :group"
    )
    key: dict[str, Any] = {"trial": trial_id, "group": group, "batches": -1, "kind": "", "after": 0, "page": PAGE}
    while True:
        rows = database.rows(sql, key)
        for run_id, kind, batches, at, data, after in rows:
            yield Metric(trial_id, run_id, kind, batches, at, load(data), after > 0)
        if len(rows) < PAGE:
            return
        key |= {"batches": batches, "kind": kind, "after": after}


_PAGE = """
SELECT run_id, kind, batches, time, data, archived FROM metrics
WHERE trial_id = :trial AND {archived} {group} AND (batches, kind, archived) > (:batches, :kind, :after)
ORDER BY batches, kind, archived LIMIT :page
"""

_ADVANCE = """
UPDATE trials SET latest_metric = :metric,
    best_metric = CASE WHEN better THEN :metric ELSE best_metric END,
    best_batches = CASE WHEN better THEN :batches ELSE best_batches END
FROM (SELECT :metric IS NOT NULL AND (t.best_metric IS NULL OR
        CASE WHEN e.smaller_is_better THEN :metric < t.best_metric ELSE :metric > t.best_metric END) AS better
      FROM trials t, experiment e WHERE t.id = :trial)
WHERE id = :trial
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
