"""The databases of a home's experiments, one in each directory: anybody reads, who holds the experiment's lock writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from det_core.errors import StoreError
from det_driver.store._database import Database, Parameters, Row
from det_driver.store._locks import experiment_lock
from det_driver.store._schema import EXPERIMENT

FILE = "experiment.db"


class Databases:
    """Opens each when it is asked for, and keeps it open."""

    def __init__(self, home: Path, readonly: bool) -> None:
        self.home = home
        self._readonly = readonly
        self._read: dict[int, Database] = {}
        self._locked: dict[int, Database] = {}
        self._snapshots: ExitStack | None = None
        self._directories: dict[int, Path] = {}

    def directory(self, id: int) -> Path:
        """`<home>/experiments/<id>`, whether it exists or not."""
        if id not in self._directories:
            self._directories[id] = self.home / "experiments" / str(id)
        return self._directories[id]

    def ids(self) -> list[int]:
        """The numbers of the directories, the highest first, be they whole or not."""
        with suppress(OSError), os.scandir(self.home / "experiments") as entries:
            return sorted((int(e.name) for e in entries if e.name.isdecimal() and e.name.isascii()), reverse=True)
        return []

    def of(self, id: int) -> Database:
        """That of an experiment, or a StoreError where there is no such experiment."""
        if id in self._locked:
            return self._locked[id]
        if not self._path(id).is_file():
            self._forget(id)
            raise self.missing(id)
        if id not in self._read:
            self._read[id] = self._open(id)
            if self._snapshots is not None:
                self._snapshots.enter_context(self._read[id].transaction())
        return self._read[id]

    def of_trial(self, trial_id: int, guess: Callable[[int], int | None], otherwise: str) -> Database:
        """That of a trial's experiment, which `guess` may know; a StoreError that ends with `otherwise` where there is none."""
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

    def each(self) -> Iterator[Database]:
        """Those of all experiments, the ones locked here and then the newest first; one that cannot be read is passed over."""
        for id in sorted(self.ids(), key=lambda id: (id not in self._locked, -id)):
            with suppress(StoreError), ExitStack() as used:
                database = self._locked.get(id) or self._read.get(id)
                if database is None and self._path(id).is_file():
                    database = self._open(id)
                    used.callback(database.close)
                if database is not None:
                    yield database

    def ask(self, sql: str, parameters: Parameters = (), *, but: int | None = None) -> Iterator[tuple[int, Row]]:
        """Yield what is found in each experiment, `but` one, with its number; one that cannot be read is passed over."""
        for database in self.each():
            rows: list[Row] = []
            with suppress(StoreError):
                rows = database.rows(sql, parameters) if database.id != but else []
            yield from ((database.id, row) for row in rows)

    def held(self) -> Database:
        """That of the experiment whose lock is held here; there must be just one."""
        if len(self._locked) != 1:
            raise StoreError("the store is written by who holds the lock of one experiment; take it with store.lock")
        return next(iter(self._locked.values()))

    @contextmanager
    def lock(self, id: int) -> Iterator[Database]:
        """Be the experiment's only writer; ExperimentBusy names the process that already is."""
        if not self._path(id).is_file():
            raise self.missing(id)
        with experiment_lock(id, self.directory(id)):
            if not self._path(id).is_file():  # it may have been deleted in between
                raise self.missing(id)
            self._forget(id)
            with ExitStack() as held:
                database = Database(self._path(id), EXPERIMENT, readonly=self._readonly, id=id)
                held.callback(database.close)
                self._locked[id] = database
                held.callback(self._locked.pop, id)
                yield database

    @contextmanager
    def writing(self, id: int) -> Iterator[Database]:
        """That of an experiment to change, under its lock; it is taken for as long as this lasts, unless it is held."""
        if id in self._locked:
            yield self._locked[id]
        else:
            with self.lock(id) as database:
                yield database

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction of those that are locked here, or else a snapshot of each that is read."""
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
        """What to raise where there is no such experiment, or none any more; what its creator began is none yet."""
        left = [path.name for path in self.directory(id).glob("*")]
        if left and f"{FILE}.new" not in left:
            return StoreError(
                f"experiment {id} has lost its {FILE}: restore {self._path(id)}, or delete what is left there"
            )
        return StoreError(f"no experiment {id}; det list shows those in {self.home}")

    def close(self) -> None:
        for database in [*self._read.values(), *self._locked.values()]:
            database.close()

    def _path(self, id: int) -> Path:
        return self.directory(id) / FILE

    def _open(self, id: int) -> Database:
        return Database(self._path(id), EXPERIMENT, readonly=True, id=id)

    def _forget(self, id: int) -> None:
        if (database := self._read.pop(id, None)) is not None:
            database.close()
