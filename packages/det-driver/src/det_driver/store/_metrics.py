"""Metrics: a history per trial and group, without a gap and without a repeat."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from det_core.errors import StoreError
from det_driver.store._database import Database
from det_driver.store._records import Metric
from det_driver.store._schema import dump, load

PAGE = 2000
VALIDATION = "validation"


class Metrics:
    """The metrics of a store's trials; validations keep the trials' best and latest values up to date."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(
        self,
        trial_id: int,
        run_id: int,
        group: str,
        batches: int,
        values: Mapping[str, Any],
        *,
        at: float | None = None,
    ) -> None:
        """Record the values of a group ("training", "validation", any) at a position.

        An earlier report of the same trial, group and position is archived. A searcher's metric that is not a
        number counts as none.
        """
        with self._database.transaction():
            again = self._archive("batches = ? AND kind = ?", trial_id, batches, group)
            metric = self._searcher_metric(trial_id, values) if group == VALIDATION else None
            try:
                self._database.run(
                    "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data, metric) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (trial_id, run_id, group, batches, time.time() if at is None else at, dump(values), metric),
                )
            except sqlite3.IntegrityError as error:
                raise StoreError(f"no trial {trial_id}; create it before its metrics") from error
            self._database.run("UPDATE trials SET batches = max(batches, ?) WHERE id = ?", (batches, trial_id))
            if group == VALIDATION:
                self._rank(trial_id) if again else self._advance(trial_id, batches, metric)

    def archive_past(self, trial_id: int, batches: int) -> None:
        """Archive what was reported after a position: the trial goes back there and does it again."""
        with self._database.transaction():
            if self._archive("batches > ?", trial_id, batches):
                self._rank(trial_id)

    def _archive(self, which: str, trial_id: int, *parameters: Any) -> int:
        return self._database.run(
            f"UPDATE metrics SET archived = id WHERE trial_id = ? AND archived = 0 AND {which}", (trial_id, *parameters)
        ).rowcount

    def _searcher_metric(self, trial_id: int, values: Mapping[str, Any]) -> float | None:
        row = self._database.row(
            "SELECT e.metric FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.id = ?", (trial_id,)
        )
        value = values.get(row[0]) if row else None
        return float(value) if isinstance(value, int | float) and not math.isnan(value) else None

    def _advance(self, trial_id: int, batches: int, metric: float | None) -> None:
        self._database.run(_ADVANCE, {"trial": trial_id, "batches": batches, "metric": metric})

    def _rank(self, trial_id: int) -> None:
        self._database.run(_RANK, {"trial": trial_id})

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
        if trial_id is not None and experiment_id is None:
            return self._of_trial(trial_id, group, archived)
        if experiment_id is None or trial_id is not None:
            raise TypeError("give trial_id or experiment_id")
        return chain.from_iterable(self._of_trial(id, group, archived) for id in self._trials_of(experiment_id))

    def _trials_of(self, experiment_id: int) -> list[int]:
        rows = self._database.rows("SELECT id FROM trials WHERE experiment_id = ? ORDER BY id", (experiment_id,))
        return [id for (id,) in rows]

    def _of_trial(self, trial_id: int, group: str | None, archived: bool) -> Iterator[Metric]:
        sql = _PAGE.format(
            archived="archived > 0" if archived else "archived = 0", group="" if group is None else "AND kind = :group"
        )
        key: dict[str, Any] = {"trial": trial_id, "group": group, "batches": -1, "kind": "", "after": 0, "page": PAGE}
        while True:
            rows = self._database.rows(sql, key)
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
      FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.id = :trial)
WHERE id = :trial
"""

_RANK = """
WITH validations AS (
    SELECT batches, m.metric, smaller_is_better
    FROM metrics m JOIN experiments e ON e.id = (SELECT experiment_id FROM trials WHERE id = :trial)
    WHERE trial_id = :trial AND kind = 'validation' AND m.archived = 0),
best AS (
    SELECT metric, batches FROM validations WHERE metric IS NOT NULL
    ORDER BY CASE WHEN smaller_is_better THEN metric ELSE -metric END, batches LIMIT 1)
UPDATE trials SET
    best_metric = (SELECT metric FROM best), best_batches = (SELECT batches FROM best),
    latest_metric = (SELECT metric FROM validations ORDER BY batches DESC LIMIT 1)
WHERE id = :trial
"""
