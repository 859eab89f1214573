"""The store: a directory tree in a home, with a database for each experiment and an index."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import StoreError
from det_driver.store._alerts import Alerts
from det_driver.store._checkpoints import Checkpoints
from det_driver.store._database import Database
from det_driver.store._databases import Databases, Visible
from det_driver.store._experiments import Experiments, entries
from det_driver.store._index import Index
from det_driver.store._journal import CommandQueue, Journal, Snapshots
from det_driver.store._locks import check_locks
from det_driver.store._metrics import Metrics
from det_driver.store._models import Models, is_reference
from det_driver.store._records import CheckpointRow, CheckpointState
from det_driver.store._runs import Runs
from det_driver.store._slots import Slots
from det_driver.store._sources import ScriptSources
from det_driver.store._trials import Trials

OLD = "det.db"
"""The database of an earlier det."""
AGENTS = "agents"
_OTHERS = 0o077
_STICKY = 0o1000


class Store:
    """Everything that det knows about the experiments of a home. The home is made if it is missing.

    A store is for one thread of one process. Opening another costs less than a millisecond. Any
    process may read an experiment. The process that holds its lock may write it. Readers and a
    writer never wait for each other, and no experiment waits for another. Every method is atomic.
    `transaction()` makes several calls atomic. For its user there are only the experiments in
    `visible`, by default all, and those that it makes.
    """

    def __init__(
        self, home: Path, *, readonly: bool = False, visible: Visible | None = None
    ) -> None:
        self.home = Path(home).absolute()
        if (self.home / OLD).is_file():
            raise StoreError(
                f"{self.home / OLD} is the store of an earlier det, which this one does not read;"
                " choose another home (DET_HOME), or move that file away to begin again"
            )
        if not readonly:
            self._make_home()
        elif not self.is_at(self.home):
            raise StoreError(f"no store in {self.home}; det run makes one")
        check_locks(self.home)
        self._databases = Databases(self.home, readonly, visible)
        # The index is for all users.
        self.index = Index(self.home, partial(entries, Databases(self.home, readonly)))
        self.slots = Slots(self.index)
        self.experiments = Experiments(self._databases, self.index, self.slots.keep)
        self.trials = Trials(self._databases, self.index)
        self.metrics = Metrics(self._databases, self.trials.of)
        self.runs = Runs(self._databases, self.trials, self.metrics)
        self.commands = CommandQueue(self._databases)
        self.checkpoints = Checkpoints(self._databases, self.trials, self.commands.send)
        self.models = Models(self.home, readonly, self._checkpoint_state)
        self.journal = Journal(self._databases)
        self.snapshots = Snapshots(self._databases)
        self.alerts = Alerts(self._databases)
        self.sources = ScriptSources(self._databases)

    @classmethod
    def reader(cls, home: Path, visible: Visible | None = None) -> Self:
        """Open for reading only. This works while a driver writes, and on a read-only disk."""
        return cls(home, readonly=True, visible=visible)

    @staticmethod
    def is_at(home: Path) -> bool:
        """Return whether a home has a store, or has had one."""
        return any((home / name).exists() for name in ("index.db", "experiments", OLD))

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.home / "experiments").mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the home {self.home}: {error.strerror}; choose one that you can"
                " write to"
            ) from error
        mode = self.home.stat().st_mode
        # A directory with the sticky bit, such as /tmp, is shared by all users.
        if mode & _OTHERS and not mode & _STICKY:
            with suppress(OSError):
                os.chmod(self.home, 0o700)

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that commits all changes inside together, or none.

        A reader sees a snapshot of each experiment inside.
        """
        return self._databases.transaction()

    def version(self, experiment_id: int | None = None) -> tuple[object, ...]:
        """Return a value that changes when another connection changes the store.

        With an id it changes with each commit to that experiment. Without one it changes with each
        commit to the index, and when an experiment is made or deleted.
        """
        if experiment_id is not None:
            return self._databases.of(experiment_id).rows("PRAGMA data_version")[0]
        there = [
            place.stat() for place in (self.home / "experiments", self.index.path) if place.exists()
        ]
        known = self.index.attempt(lambda database: database.rows("PRAGMA data_version")[0])
        return (*(each.st_ino for each in there), *(each.st_mtime_ns for each in there[:1]), known)

    def experiment_dir(self, experiment_id: int) -> Path:
        """Return `<home>/experiments/<id>`, which `experiments.create` makes."""
        return self.experiments.directory(experiment_id)

    def agents_dir(self, experiment_id: int) -> Path:
        """Return the directory of the records that a driver and its agents share.

        It is of use on this machine alone.
        """
        return self.experiment_dir(experiment_id) / AGENTS

    def code_dir(self, experiment_id: int) -> Path:
        """Return the place of the copy of the user's code, in the experiment's directory."""
        return self.experiment_dir(experiment_id) / "code"

    def checkpoint(self, name: str) -> CheckpointRow:
        """Return a checkpoint by its uuid, the beginning of it, or a version of a model.

        A version is named as `Models.refer` reads it. Raises StoreError if there is none.
        """
        return self.checkpoints.get(self.models.refer(name).uuid if is_reference(name) else name)

    def _checkpoint_state(self, name: str) -> tuple[str, CheckpointState]:
        """Return the whole uuid of a checkpoint, and its state.

        It counts as deleted as soon as its driver has been asked to record that.
        """
        row = self.checkpoints.get(name)
        leaving = self.commands.deleted(self.trials.get(row.trial_id).experiment_id)
        # Read the row last: a driver records a deletion before it removes the command.
        state = self.checkpoints.get(row.uuid).state
        return row.uuid, CheckpointState.DELETED if row.uuid in leaving else state

    def lock(self, experiment_id: int) -> AbstractContextManager[Database]:
        """Make this store the experiment's only driver and only writer.

        Raises ExperimentBusy, which names the process that holds the lock.
        """
        return self._databases.lock(experiment_id)

    def make_room(self) -> None:
        """Checkpoint the write-ahead log of the locked database, so that its space is used again.

        So a little can still be written when the disk is full.
        """
        self._databases.held().rows("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        self._databases.close()
        self.models.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
