"""The databases of a home's experiments, one in each directory.

Any process may read a database. The process that holds the experiment's lock may write it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from det_core.errors import StoreError
from det_driver.store._database import Database, Parameters, Row
from det_driver.store._locks import experiment_lock
from det_driver.store._schema import EXPERIMENT

FILE = "experiment.db"


class Visible(Protocol):
    """The numbers of the experiments that a store shows. `set[int]` is one."""

    def __contains__(self, id: object, /) -> bool:
        """Return whether the store shows an experiment."""
        ...

    def add(self, id: int, /) -> None:
        """Show an experiment that the store has made."""
        ...


class Databases:
    """Opens each database when it is needed, and keeps it open.

    An experiment that is not in `visible` does not exist for its user.
    """

    def __init__(self, home: Path, readonly: bool, visible: Visible | None = None) -> None:
        self.home = home
        self.visible = visible
        self._readonly = readonly
        self._read: dict[int, Database] = {}
        self._locked: dict[int, Database] = {}
        self._snapshots: ExitStack | None = None
        self._directories: dict[int, Path] = {}

    def directory(self, id: int) -> Path:
        """Return `<home>/experiments/<id>`, which need not exist."""
        if id not in self._directories:
            self._directories[id] = self.home / "experiments" / str(id)
        return self._directories[id]

    def ids(self) -> list[int]:
        """Return the numbers of the visible experiments' directories, the highest first."""
        return [id for id in self.every_id() if self.is_visible(id)]

    def is_visible(self, id: int) -> bool:
        """Return whether an experiment exists for the user, if there is one of that number."""
        return self.visible is None or id in self.visible

    def every_id(self) -> list[int]:
        """Return the numbers of all experiments' directories, the highest first."""
        with suppress(OSError), os.scandir(self.home / "experiments") as entries:
            return sorted(
                (int(e.name) for e in entries if e.name.isdecimal() and e.name.isascii()),
                reverse=True,
            )
        return []

    def of(self, id: int) -> Database:
        """Return the database of an experiment.

        Raises StoreError if there is no such experiment.
        """
        if id in self._locked:
            return self._locked[id]
        if not self._exists(id):
            self.forget(id)
            raise self.missing(id)
        if id not in self._read:
            self._read[id] = self._open(id)
            if self._snapshots is not None:
                self._snapshots.enter_context(self._read[id].transaction())
        return self._read[id]

    def of_trial(
        self, trial_id: int, guess: Callable[[int], int | None], otherwise: str
    ) -> Database:
        """Return the database of a trial's experiment, which `guess` may know.

        Raises a StoreError that ends with `otherwise` if there is no such trial.
        """
        asked = "SELECT 1 FROM trials WHERE id = ?", (trial_id,)
        for database in self._locked.values():
            if trial_id in database.memory.trials or database.row(*asked):
                database.memory.trials.add(trial_id)
                return database
        with suppress(StoreError):
            if (likely := guess(trial_id)) is not None and self.of(likely).row(*asked):
                return self.of(likely)
        found = next((id for id, _ in self.ask(*asked)), None)
        if found is None:
            raise StoreError(f"no trial {trial_id}; {otherwise}")
        return self.of(found)

    def each(self, *, hidden: bool = False) -> Iterator[Database]:
        """Yield the databases of all experiments: the ones locked here, and then the newest first.

        Databases that cannot be read are skipped. With `hidden`, those that are not visible come
        too.
        """
        ids = self.every_id() if hidden else self.ids()
        for id in sorted(ids, key=lambda id: (id not in self._locked, -id)):
            with suppress(StoreError), ExitStack() as used:
                database = self._locked.get(id) or self._read.get(id)
                if database is None and self._path(id).is_file():
                    database = self._open(id)
                    used.callback(database.close)
                if database is not None:
                    yield database

    def ask(
        self, sql: str, parameters: Parameters = (), *, hidden: bool = False
    ) -> Iterator[tuple[int, Row]]:
        """Yield the rows of a query in each experiment, with the experiment's number.

        Databases that cannot be read are skipped. With `hidden`, experiments that are not visible
        are asked too.
        """
        for database in self.each(hidden=hidden):
            rows: list[Row] = []
            with suppress(StoreError):
                rows = database.rows(sql, parameters)
            yield from ((database.id, row) for row in rows)

    def ask_every(
        self, sql: str, parameters: Parameters = (), *, but: int
    ) -> Iterator[tuple[int, Row]]:
        """Yield the rows of a query in each experiment except `but`, hidden ones too.

        For decisions that must not miss one: raises StoreError for an experiment that cannot be
        read.
        """
        for id in self.every_id():
            try:
                if id == but or not (self._path(id).is_file() or self.is_begun(id)):
                    continue
                with closing(self._open(id)) as database:
                    rows = database.rows(sql, parameters)
            except StoreError as error:
                if not self.directory(id).exists():
                    # It was deleted in between.
                    continue
                raise StoreError(
                    f"experiment {id} cannot be read, and may need these checkpoints: restore its"
                    f" {FILE}, or remove {self.directory(id)}; {error}"
                ) from error
            yield from ((id, row) for row in rows)

    def held(self) -> Database:
        """Return the database of the one experiment whose lock this store holds."""
        if len(self._locked) != 1:
            raise StoreError(
                "the store is written by who holds the lock of one experiment; take it with"
                " store.lock"
            )
        return next(iter(self._locked.values()))

    @contextmanager
    def lock(self, id: int) -> Iterator[Database]:
        """Make this store the experiment's only writer.

        Raises ExperimentBusy, which names the process that holds the lock.
        """
        if not self._exists(id):
            raise self.missing(id)
        with experiment_lock(id, self.directory(id)):
            # It may have been deleted in between.
            if not self._exists(id):
                raise self.missing(id)
            self.forget(id)
            with ExitStack() as held:
                database = Database(self._path(id), EXPERIMENT, readonly=self._readonly, id=id)
                held.callback(database.close)
                self._locked[id] = database
                held.callback(self._locked.pop, id)
                yield database

    @contextmanager
    def writing(self, id: int) -> Iterator[Database]:
        """Return the database of an experiment to write, under its lock.

        Unless this store holds the lock already, it takes it until the context ends.
        """
        if id in self._locked:
            yield self._locked[id]
        else:
            with self.lock(id) as database:
                yield database

    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction of the one locked database, or a snapshot of each that is read."""
        return self.held().transaction() if len(self._locked) == 1 else self._all()

    @contextmanager
    def _all(self) -> Iterator[None]:
        with ExitStack() as parts:
            if not self._locked:
                self._snapshots = parts
            for database in [*(self._locked or self._read).values()]:
                parts.enter_context(database.transaction())
            try:
                yield
            finally:
                self._snapshots = None

    def missing(self, id: int) -> StoreError:
        """Return the error for an experiment that does not exist, or not any more.

        An experiment whose creation is not finished does not exist yet.
        """
        if self.is_visible(id) and self.is_begun(id):
            return StoreError(
                f"experiment {id} has lost its {FILE}: restore {self._path(id)}, or delete what is"
                " left there"
            )
        return StoreError(f"no experiment {id}; det list shows those in {self.home}")

    def is_begun(self, id: int) -> bool:
        """Return whether a directory is more than an experiment that is being made now."""
        names = {path.name for path in self.directory(id).glob("*")}
        return bool(names) and f"{FILE}.new" not in names

    def is_locked(self, id: int) -> bool:
        """Return whether this store holds the lock of an experiment."""
        return id in self._locked

    def close(self) -> None:
        for database in [*self._read.values(), *self._locked.values()]:
            database.close()

    def _exists(self, id: int) -> bool:
        return self.is_visible(id) and self._path(id).is_file()

    def _path(self, id: int) -> Path:
        return self.directory(id) / FILE

    def _open(self, id: int) -> Database:
        return Database(self._path(id), EXPERIMENT, readonly=True, id=id)

    def forget(self, id: int) -> None:
        """Close the database of an experiment that was read.

        It is opened again when it is needed.
        """
        if (database := self._read.pop(id, None)) is not None:
            database.close()
