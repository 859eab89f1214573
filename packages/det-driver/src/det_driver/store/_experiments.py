"""Experiments: one row each, and one directory below `<home>/experiments`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from det_core.errors import StoreError
from det_driver.store._database import Database, Row
from det_driver.store._locks import ExperimentLock
from det_driver.store._records import ExperimentRow, ExperimentState, ExperimentSummary, TrialState
from det_driver.store._schema import assignments, dump, load

_COLUMNS = (
    "id, name, description, labels, config, entrypoint, metric, smaller_is_better, state, archived, progress, "
    "created, started, ended, pid, boot"
)


class ExperimentChanges(TypedDict, total=False):
    """What `update` may change."""

    name: str
    description: str
    labels: Sequence[str]
    config: str
    state: ExperimentState
    archived: bool
    progress: float
    started: float | None
    ended: float | None
    pid: int | None
    boot: str | None


class Experiments:
    """The experiments of a store."""

    def __init__(self, database: Database, home: Path) -> None:
        self._database = database
        self._home = home

    def create(
        self,
        *,
        name: str,
        config: str,
        entrypoint: str = "",
        metric: str = "",
        smaller_is_better: bool = True,
        description: str = "",
        labels: Sequence[str] = (),
        state: ExperimentState = ExperimentState.ACTIVE,
    ) -> ExperimentRow:
        """Add an experiment and make its directory, empty."""
        with self._database.transaction():
            id = self._free_id()
            self._database.run(
                "INSERT INTO experiments (id, name, description, labels, config, entrypoint, metric, "
                "smaller_is_better, state, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(id, name, description, dump(list(labels)), config, entrypoint, metric),
                    *(smaller_is_better, state, time.time()),
                ),
            )
            self._make_directory(id)
            return self.get(id)

    def _free_id(self) -> int:
        # Ids are never used twice, and a directory that an undone or lost experiment left is never mixed with another.
        row = self._database.row("SELECT seq FROM sqlite_sequence WHERE name = 'experiments'")
        id = row[0] + 1 if row else 1
        while self.directory(id).exists():
            id += 1
        return int(id)

    def _make_directory(self, id: int) -> None:
        try:
            self.directory(id).mkdir(parents=True)
        except OSError as error:
            raise StoreError(f"cannot make {self.directory(id)}: {error.strerror}; check the home's rights") from error

    def directory(self, id: int) -> Path:
        """`<home>/experiments/<id>`, whether it exists or not."""
        return self._home / "experiments" / str(id)

    def get(self, id: int) -> ExperimentRow:
        """The experiment, or a StoreError where there is none."""
        row = self._database.row(f"SELECT {_COLUMNS} FROM experiments WHERE id = ?", (id,))
        if row is None:
            raise self._missing(id)
        return _experiment(row)

    def summaries(self, experiments: Iterable[ExperimentRow]) -> list[ExperimentSummary]:
        """Each with the number of its trials by state, and its best trial by the searcher's metric."""
        listed = [*experiments]
        ids = (dump([experiment.id for experiment in listed]),)
        counts: dict[int, dict[TrialState, int]] = {experiment.id: {} for experiment in listed}
        for id, state, count in self._database.rows(
            "SELECT experiment_id, state, count(*) FROM trials "
            "WHERE experiment_id IN (SELECT value FROM json_each(?)) GROUP BY experiment_id, state",
            ids,
        ):
            counts[id][TrialState(state)] = count
        best = {row[0]: row[1:] for row in self._database.rows(_BEST, ids)}
        return [ExperimentSummary(each, counts[each.id], *best.get(each.id, (None, None))) for each in listed]

    def list(self, *, archived: bool | None = False, limit: int | None = None) -> list[ExperimentRow]:
        """Newest first; `archived=None` means both kinds."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM experiments WHERE :archived IS NULL OR archived = :archived "
            "ORDER BY id DESC LIMIT :limit",
            {"archived": archived, "limit": -1 if limit is None else limit},
        )
        return [_experiment(row) for row in rows]

    def update(self, id: int, **changes: Unpack[ExperimentChanges]) -> None:
        """Change the columns named."""
        values: dict[str, Any] = {**changes}
        if "labels" in values:
            values["labels"] = dump([*values["labels"]])
        text, parameters = assignments(values, ExperimentChanges)
        if self._database.run(f"UPDATE experiments SET {text} WHERE id = ?", (*parameters, id)).rowcount == 0:
            raise self._missing(id)

    def delete(self, id: int) -> None:
        """Remove the experiment, all that belongs to it and its directory; ExperimentBusy where a driver holds it.

        Checkpoints' files lie in their storage; remove them first.
        """
        self.get(id)
        with ExperimentLock(id, self.directory(id)):
            self._database.run("DELETE FROM experiments WHERE id = ?", (id,))
            import shutil  # brings every compressor along

            try:
                shutil.rmtree(self.directory(id))
            except OSError as error:
                raise StoreError(
                    f"experiment {id} is deleted, but not all of {self.directory(id)}: {error.strerror}; remove it"
                ) from error

    def _missing(self, id: int) -> StoreError:
        return StoreError(f"no experiment {id}; det list shows those in {self._home}")


_BEST = """
SELECT experiment_id, best_metric, id FROM (
    SELECT t.experiment_id, t.best_metric, t.id, row_number() OVER (
        PARTITION BY t.experiment_id
        ORDER BY CASE WHEN e.smaller_is_better THEN t.best_metric ELSE -t.best_metric END, t.id) AS place
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.best_metric IS NOT NULL AND e.id IN (SELECT value FROM json_each(?)))
WHERE place = 1
"""


def _experiment(row: Row) -> ExperimentRow:
    id, name, description, labels, config, entrypoint, metric, smaller, state, archived, *rest = row
    return ExperimentRow(
        *(id, name, description, tuple(load(labels)), config, entrypoint, metric, bool(smaller)),
        *(ExperimentState(state), bool(archived), *rest),
    )
