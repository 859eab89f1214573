"""Experiments: one directory each below `<home>/experiments`, and a row in its database."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypedDict, Unpack

from det_core.errors import StoreError
from det_driver.store._database import Database
from det_driver.store._databases import FILE, Databases
from det_driver.store._file import beside
from det_driver.store._index import Entry, Index
from det_driver.store._locks import boot_id, is_free
from det_driver.store._records import ExperimentRow, ExperimentState, ExperimentSummary, TrialState
from det_driver.store._schema import EXPERIMENT, assignments, dump, load

_COLUMNS = (
    "name, description, labels, config, entrypoint, metric, smaller_is_better, engine, state, archived, progress, "
    "created, started, ended, reason, pid, boot, journal, det"
)
PUBLISHED_SECONDS = 1.0


class Description(TypedDict, total=False):
    """What people call an experiment, and say of it."""

    name: str
    description: str
    labels: Sequence[str]


class ExperimentChanges(Description, total=False):
    """What `update` may change."""

    config: str
    engine: str
    state: ExperimentState
    archived: bool
    progress: float
    started: float | None
    ended: float | None
    reason: str | None
    pid: int | None
    boot: str | None
    det: str | None


class Experiments:
    """The experiments of a home; `published` is called whenever the index has been told of one."""

    def __init__(self, databases: Databases, index: Index, published: Callable[[], None]) -> None:
        self._databases = databases
        self._index = index
        self._published = published
        self._next = 0.0

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
        engine: str = "local",
        fill: Callable[[int], object] = lambda id: None,
    ) -> ExperimentRow:
        """Make an experiment's directory, its database in it and what `fill` puts there; nothing is left where that fails."""
        id = self.new_directory()
        place = self.directory(id) / f"{FILE}.new"  # under its name all is whole, be this process killed wherever it is
        values = (name, description, dump(list(labels)), config, entrypoint, metric, smaller_is_better, engine)
        try:
            with closing(Database(place, EXPERIMENT)) as database:
                database.run(
                    "INSERT INTO experiment (name, description, labels, config, entrypoint, metric, smaller_is_better, "
                    "engine, state, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'ACTIVE', ?)",
                    (*values, time.time()),
                )
            fill(id)
            for each in beside(place):  # a journal that stays goes by the name that the file had
                each.unlink(missing_ok=True)
            os.rename(place, place.with_suffix(""))
        except BaseException:
            import shutil  # brings every compressor along

            shutil.rmtree(self.directory(id), ignore_errors=True)
            raise
        self.publish(id)
        return self.get(id)

    def new_directory(self) -> int:
        """Make an empty directory; its number was no other experiment's, be the index as it may."""
        while True:
            id = self._index.number() or max(self._databases.ids(), default=0) + 1
            place = self.directory(id)
            try:
                place.mkdir(parents=True)
                return id
            except OSError as error:
                if not isinstance(error, FileExistsError) or not place.is_dir():
                    raise StoreError(f"cannot make {place}: {error.strerror}; check the home's rights") from error

    def directory(self, id: int) -> Path:
        """`<home>/experiments/<id>`, whether it exists or not."""
        return self._databases.directory(id)

    def get(self, id: int) -> ExperimentRow:
        """The experiment, or a StoreError where there is none."""
        return _experiment(self._databases.of(id))

    def summary(self, id: int) -> ExperimentSummary:
        """The experiment with the number of its trials by state, and its best trial by the searcher's metric."""
        return _summary(self._databases.of(id))

    def list(
        self, *, archived: bool | None = False, limit: int | None = None, unread: dict[int, str] | None = None
    ) -> list[ExperimentSummary]:
        """Newest first, as the index has them; `archived=None` means both kinds.

        Directories that the index does not know are read, and so are those of experiments whose driver may be gone. Why one
        cannot be read is put into `unread`, or else on stderr.
        """
        known, found = self._index.summaries(), list[ExperimentSummary]()
        for id in self._databases.ids():
            summary = known.get(id)
            if summary is None or _doubtful(summary.experiment):
                try:
                    summary = self.summary(id)
                except StoreError as error:
                    if unread is not None:
                        unread[id] = str(error)
                    elif (self.directory(id) / FILE).exists():
                        sys.stderr.write(f"det: experiment {id} is left out: {error}\n")
                    continue
                if summary != known.get(id):
                    self._index.put(summary)
            if len(found) == limit:
                break
            if archived is None or summary.experiment.archived == archived:
                found.append(summary)
        return found

    def update(self, id: int, **changes: Unpack[ExperimentChanges]) -> None:
        """Change the columns named; takes the experiment's lock for that, unless this store holds it."""
        text, parameters = assignments(changes, ExperimentChanges)
        parameters = [dump(list(each)) if isinstance(each, list | tuple) else each for each in parameters]
        with self._databases.writing(id) as database:
            database.run(f"UPDATE experiment SET {text}", parameters)
            if changes.keys() - {"progress"} or time.monotonic() >= self._next:
                database.afterwards(lambda: self.publish(id))

    def driven(self, id: int) -> bool:
        """Tell whether a driver holds the experiment."""
        return not is_free(self.directory(id))

    def orphaned(self, experiment: ExperimentRow) -> bool:
        """Tell whether an experiment is ACTIVE, was started, and no driver holds it now."""
        if experiment.state is not ExperimentState.ACTIVE or experiment.started is None:
            return False  # the number of a process may be another's by now
        return _doubtful(experiment) or is_free(self.directory(experiment.id))

    def publish(self, id: int) -> None:
        """Tell the index how an experiment stands."""
        with suppress(StoreError):
            self._index.put(self.summary(id))
        self._published()
        self._next = time.monotonic() + PUBLISHED_SECONDS

    def delete(self, id: int) -> None:
        """Remove the experiment and its directory; ExperimentBusy where a driver holds it.

        Checkpoints' files lie in their storage; remove them first.
        """
        import shutil  # brings every compressor along

        place = self.directory(id)
        with self._databases.writing(id):
            gone = place.with_name(f".deleted-{id}-{os.urandom(4).hex()}")
            os.rename(place, gone)  # at once, so that nobody finds half of it
            self._index.forget(id)
        try:
            for each in place.parent.glob(".deleted-*"):  # and what a deletion left that was interrupted
                shutil.rmtree(each)
        except OSError as error:
            raise StoreError(
                f"experiment {id} is deleted, but not all of {gone}: {error.strerror}; remove it"
            ) from error


def entries(databases: Databases) -> Iterator[Entry]:
    """What the index is made of."""
    read = {}
    for database in databases.each():
        with suppress(StoreError, IndexError):
            read[database.id] = (_summary(database), database.rows("SELECT first, last FROM blocks"))
    for id in databases.ids():
        yield (id, *read.get(id, (None, [])))


def _doubtful(experiment: ExperimentRow) -> bool:
    """Tell whether a driver may have changed it, or have died, without telling the index."""
    if experiment.state is not ExperimentState.ACTIVE:
        return False
    return experiment.boot != boot_id() or not Path(f"/proc/{experiment.pid}").exists()


def _experiment(database: Database) -> ExperimentRow:
    name, description, labels, config, entrypoint, metric, smaller, engine, state, archived, *rest = database.rows(
        f"SELECT {_COLUMNS} FROM experiment"
    )[0]
    return ExperimentRow(
        *(database.id, name, description, tuple(load(labels)), config, entrypoint, metric, bool(smaller), engine),
        *(ExperimentState(state), bool(archived), *rest),
    )


def _summary(database: Database) -> ExperimentSummary:
    experiment = _experiment(database)
    counts = database.rows("SELECT state, count(*) FROM trials GROUP BY state")
    order = "ASC" if experiment.smaller_is_better else "DESC"
    best = database.row(
        f"SELECT best_metric, id FROM trials WHERE best_metric IS NOT NULL ORDER BY best_metric {order}, id LIMIT 1"
    )
    return ExperimentSummary(experiment, {TrialState(s): count for s, count in counts}, *(best or (None, None)))
