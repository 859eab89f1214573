"""Experiments: one directory each below `<home>/experiments`, with one row in its database."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from det_core.config import ExperimentConfig, Extensions, find_secrets
from det_core.errors import StoreError
from det_driver.store._database import Database, Flag, write_new
from det_driver.store._databases import FILE, Databases
from det_driver.store._index import Entry, Index
from det_driver.store._locks import boot_id, is_free, is_shared
from det_driver.store._records import ExperimentRow, ExperimentState, ExperimentSummary, TrialState
from det_driver.store._schema import EXPERIMENT, assignments, convert, dump, load
from det_driver.store._secrets import complete_config, find_unmasked, write_secrets

_COLUMNS = (
    "name, description, labels, config, entrypoint, metric, smaller_is_better, engine, state,"
    " archived, progress, created, started, ended, reason, pid, boot, journal, det"
)
_labels = msgspec.json.Decoder(tuple[str, ...])
_row = msgspec.json.Decoder(tuple[
    str, str, str, str, str, str, Flag, str, ExperimentState, Flag, float, float, float | None,
    float | None, str | None, int | None, str | None, int, str | None,
])  # fmt: skip
PUBLISHED_SECONDS = 1.0
T = TypeVar("T")


class Description(TypedDict, total=False):
    """The name, the description and the labels that people give to an experiment."""

    name: str
    description: str
    labels: Sequence[str]


class ExperimentChanges(Description, total=False):
    """The columns that `update` may change."""

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
    journal: int
    det: str | None


class Experiments:
    """The experiments of a home. `published` is called after each update of the index."""

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
        state: ExperimentState = ExperimentState.ACTIVE,
        secrets: Sequence[Any] = (),
        fill: Callable[[int], object] = lambda id: None,
    ) -> ExperimentRow:
        """Make an experiment's directory, its database and the files that `fill` adds.

        If a step fails, nothing is left. With `secrets`, `config` must be masked.
        """
        id = self.new_directory()
        # A file with its final name is complete, even if this process is killed at any point.
        place = self.directory(id) / f"{FILE}.new"
        values = (
            name,
            description,
            dump(list(labels)),
            config,
            entrypoint,
            metric,
            smaller_is_better,
            engine,
            state,
        )
        try:
            write_new(
                place,
                EXPERIMENT,
                "INSERT INTO experiment (name, description, labels, config, entrypoint, metric,"
                " smaller_is_better, engine, state, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, time.time()),
                shared=is_shared(self.directory(id)),
            )
            write_secrets(self.directory(id), secrets)
            fill(id)
            os.rename(place, place.with_suffix(""))
        except BaseException:
            # Slow to import, as it imports every compressor.
            import shutil

            shutil.rmtree(self.directory(id), ignore_errors=True)
            raise
        self.publish(id)
        return self.get(id)

    def new_directory(self) -> int:
        """Make an empty directory and return its number.

        No other experiment has had the number, even if the index cannot be used.
        """
        self._index.check_writable()
        while True:
            id = self._index.number() or max(self._databases.every_id(), default=0) + 1
            place = self.directory(id)
            try:
                place.mkdir(parents=True)
                if self._databases.visible is not None:
                    self._databases.visible.add(id)
                return id
            except OSError as error:
                if not isinstance(error, FileExistsError) or not place.is_dir():
                    raise StoreError(
                        f"cannot make {place}: {error.strerror}; check the home's rights"
                    ) from error

    def directory(self, id: int) -> Path:
        """Return `<home>/experiments/<id>`, which need not exist."""
        return self._databases.directory(id)

    def get(self, id: int) -> ExperimentRow:
        """Return the experiment. Raises StoreError if it does not exist."""
        return _read(_experiment, self._databases.of(id))

    def rows(self, ids: Iterable[int]) -> dict[int, ExperimentRow]:
        """Return those of the experiments that exist, in the same order, as the index knows them.

        A row may be a second old. Experiments that the index does not know are read.
        """
        wanted = [id for id in ids if self._databases.is_visible(id)]
        found = {id: each.experiment for id, each in self._index.summaries(wanted).items()}
        for id in wanted:
            if id not in found:
                with suppress(StoreError):
                    found[id] = self.get(id)
        return {id: found[id] for id in wanted if id in found}

    def config(self, id: int, extensions: Extensions | None = None) -> ExperimentConfig:
        """Return the configuration with its secrets, which `get` masks.

        Use it to train with the configuration, or to open its storage.
        """
        return complete_config(self.directory(id), self.get(id).config, extensions)

    def hide_secrets(self, id: int) -> None:
        """Move the secrets that an earlier det left in the database into their file.

        The lock must be held.
        """
        # It has those that are in the file already, which stay.
        config = self.config(id)
        with self._databases.writing(id) as database:
            if statements := find_unmasked(database, config):
                write_secrets(self.directory(id), find_secrets(config))
                # Without it their bytes would stay in a free page.
                database.rows("PRAGMA secure_delete = ON")
                with database.transaction():
                    for statement in statements:
                        database.run(*statement)
                self.publish(id)

    def summary(self, id: int) -> ExperimentSummary:
        """Return the experiment with the number of its trials by state and its best trial."""
        return _read(_summary, self._databases.of(id))

    def list(
        self,
        *,
        archived: bool | None = False,
        limit: int | None = None,
        unread: dict[int, str] | None = None,
        tasks: bool = True,
    ) -> list[ExperimentSummary]:
        """Return the experiments, the newest first.

        `archived=None` includes archived ones and others. Without `tasks`, commands are left out.

        Summaries come from the index. Some databases are read instead:

        - those of experiments that the index does not know,
        - those of experiments whose driver may be gone,
        - those that are missing or empty.

        The reason why a database cannot be read goes into `unread`, or else to stderr.
        """
        known, found = self._index.summaries(), list[ExperimentSummary]()
        for id in self._databases.ids():
            summary = known.get(id)
            if summary is None or _doubtful(summary.experiment) or self._lost(id):
                try:
                    summary = self.summary(id)
                except StoreError as error:
                    if not self._databases.is_begun(id):
                        continue
                    if unread is not None:
                        unread[id] = str(error)
                    else:
                        sys.stderr.write(f"det: experiment {id} is left out: {error}\n")
                    continue
                if summary != known.get(id):
                    self._index.put(summary)
            if len(found) == limit:
                break
            if (archived is None or summary.experiment.archived == archived) and (
                tasks or not summary.experiment.task
            ):
                found.append(summary)
        return found

    def _lost(self, id: int) -> bool:
        """Return whether the database is missing or empty, as after a full disk or a power cut."""
        try:
            return (self.directory(id) / FILE).stat().st_size == 0
        except OSError:
            return True

    def update(self, id: int, **changes: Unpack[ExperimentChanges]) -> None:
        """Change the named columns.

        Takes the experiment's lock for the update, unless this store holds it.
        """
        text, parameters = assignments(changes, ExperimentChanges)
        parameters = [
            dump(list(each)) if isinstance(each, list | tuple) else each for each in parameters
        ]
        with self._databases.writing(id) as database:
            # Names of tables and columns are constants of ours; values are parameters.
            database.run(f"UPDATE experiment SET {text}", parameters)  # nosec B608
            if changes.keys() - {"progress"} or time.monotonic() >= self._next:
                database.afterwards(lambda: self.publish(id))

    def count_changes(self, id: int) -> int:
        """Return how many rows of the experiment this store has changed since it opened it."""
        with self._databases.writing(id) as database:
            return database.changes

    def last_write(self, id: int) -> int:
        """Return when a database was last written, in nanoseconds since the epoch, or 0."""
        place = str(self.directory(id) / FILE)
        times = [0]
        # Between two checkpoints, only the write-ahead log is written.
        for each in (place, f"{place}-wal"):
            with suppress(OSError):
                times.append(os.stat(each).st_mtime_ns)
        return max(times)

    def driven(self, id: int) -> bool:
        """Return whether a driver holds the experiment."""
        return not is_free(self.directory(id))

    def orphaned(self, experiment: ExperimentRow) -> bool:
        """Return whether an experiment is ACTIVE and was started, but no driver holds it now."""
        if experiment.state is not ExperimentState.ACTIVE or experiment.started is None:
            return False
        # Another process may have the pid by now, so the lock decides.
        return _doubtful(experiment) or is_free(self.directory(experiment.id))

    def publish(self, id: int) -> None:
        """Copy the summary of an experiment to the index."""
        with suppress(StoreError):
            self._index.put(self.summary(id))
        self._published()
        self._next = time.monotonic() + PUBLISHED_SECONDS

    def release(self, id: int) -> None:
        """Close the database of an experiment, as the number of open files is limited."""
        self._databases.forget(id)

    def delete(self, id: int) -> None:
        """Remove the experiment and its directory. Raises ExperimentBusy if a driver holds it.

        Checkpoint files are in their storage. Remove them first.
        """
        # Slow to import, as it imports every compressor.
        import shutil

        place = self.directory(id)
        with self._databases.writing(id):
            gone = place.with_name(f".deleted-{id}-{os.urandom(4).hex()}")
            # A rename is atomic, so that no reader finds a part of it.
            os.rename(place, gone)
            self._index.forget(id)
        try:
            # Also remove what an interrupted deletion left.
            for each in place.parent.glob(".deleted-*"):
                shutil.rmtree(each)
        except OSError as error:
            raise StoreError(
                f"experiment {id} is deleted, but not all of {gone}: {error.strerror}; remove it"
            ) from error


def entries(databases: Databases) -> Iterator[Entry]:
    """Yield the entries from which the index is made."""
    read = {}
    for database in databases.each():
        with suppress(StoreError):
            blocks = database.typed(tuple[int, int], "SELECT first, last FROM blocks")
            read[database.id] = (_read(_summary, database), [*blocks])
    for id in databases.ids():
        yield (id, *read.get(id, (None, [])))


def _doubtful(experiment: ExperimentRow) -> bool:
    """Return whether a driver may have changed it, or have died, without an update of the index."""
    if experiment.state is not ExperimentState.ACTIVE:
        return False
    return experiment.boot != boot_id() or not Path(f"/proc/{experiment.pid}").exists()


def _read(read: Callable[[Database], T], database: Database) -> T:
    """Read an experiment, so that an error in its database names that database alone."""
    with database.decoding():
        return read(database)


def _experiment(database: Database) -> ExperimentRow:
    # Names of tables and columns are constants of ours; values are parameters.
    row = database.typed(_row.type, f"SELECT {_COLUMNS} FROM experiment")[0]  # nosec B608
    (
        name,
        description,
        labels,
        config,
        entrypoint,
        metric,
        smaller,
        engine,
        state,
        archived,
        *rest,
    ) = row
    names = convert(load(labels), _labels.type)
    return ExperimentRow(
        *(database.id, name, description, names, config, entrypoint, metric, bool(smaller), engine),
        *(state, bool(archived), *rest),
    )


def _summary(database: Database) -> ExperimentSummary:
    experiment = _experiment(database)
    counts = database.typed(
        tuple[TrialState, int], "SELECT state, count(*) FROM trials GROUP BY state"
    )
    order = "ASC" if experiment.smaller_is_better else "DESC"
    sql = (
        # Names of tables and columns are constants of ours; values are parameters.
        "SELECT best_metric, id FROM trials WHERE best_metric IS NOT NULL ORDER BY best_metric"  # nosec B608
        f" {order}, id LIMIT 1"
    )
    best = next(iter(database.typed(tuple[float, int], sql)), (None, None))
    return ExperimentSummary(experiment, dict(counts), *best)
