"""The store of experiments: a directory tree below a home, with a database for each experiment and an index of all."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import StoreError
from det_driver.store._checkpoints import Checkpoints
from det_driver.store._database import Database
from det_driver.store._databases import Databases
from det_driver.store._experiments import Experiments, entries
from det_driver.store._index import Index
from det_driver.store._journal import CommandQueue, Journal, Snapshots
from det_driver.store._metrics import Metrics
from det_driver.store._runs import Runs
from det_driver.store._slots import Slots
from det_driver.store._trials import Trials

OLD = "det.db"
AGENTS = "agents"
"""Where an earlier det kept everything."""
_OTHERS = 0o077
_STICKY = 0o1000


class Store:
    """Everything det knows about the experiments of a home (made when it is not there).

    For one thread of one process; another opens its own, which costs less than a millisecond. An experiment is read by
    anybody and written by who holds its lock; readers never wait for a writer nor a writer for readers, and no experiment
    waits for another. Every method is atomic; `transaction()` makes several so.
    """

    def __init__(self, home: Path, *, readonly: bool = False) -> None:
        self.home = Path(home).absolute()
        if (self.home / OLD).is_file():
            raise StoreError(
                f"{self.home / OLD} is the store of an earlier det, which this one does not read; choose another home "
                "(DET_HOME), or move that file away to begin anew"
            )
        if not readonly:
            self._make_home()
        elif not self.is_at(self.home):
            raise StoreError(f"no store in {self.home}; det run makes one")
        self._databases = Databases(self.home, readonly)
        self.index = Index(self.home, partial(entries, self._databases))
        self.slots = Slots(self.index)
        self.experiments = Experiments(self._databases, self.index, self.slots.keep)
        self.trials = Trials(self._databases, self.index)
        self.metrics = Metrics(self._databases, self.trials.of)
        self.runs = Runs(self._databases, self.trials, self.metrics)
        self.commands = CommandQueue(self._databases)
        self.checkpoints = Checkpoints(self._databases, self.trials, self.commands.send)
        self.journal = Journal(self._databases)
        self.snapshots = Snapshots(self._databases)

    @classmethod
    def reader(cls, home: Path) -> Self:
        """Open for reading only, also while a driver writes, also on a read-only disk."""
        return cls(home, readonly=True)

    @staticmethod
    def is_at(home: Path) -> bool:
        """Tell whether there is a store in a home, or has been one."""
        return any((home / name).exists() for name in ("index.db", "experiments", OLD))

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.home / "experiments").mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the home {self.home}: {error.strerror}; choose one that you can write to"
            ) from error
        mode = self.home.stat().st_mode
        if mode & _OTHERS and not mode & _STICKY:  # nobody's own place is one where everybody may write
            with suppress(OSError):
                os.chmod(self.home, 0o700)

    def transaction(self) -> AbstractContextManager[None]:
        """All changes inside are written together, or none; a reader sees one instant's state of each experiment inside."""
        return self._databases.transaction()

    def version(self, experiment_id: int | None = None) -> tuple[object, ...]:
        """What is another value once others have committed to an experiment; or to the index, or have made or deleted one."""
        if experiment_id is not None:
            return self._databases.of(experiment_id).rows("PRAGMA data_version")[0]
        there = [place.stat() for place in (self.home / "experiments", self.index.path) if place.exists()]
        known = self.index.attempt(lambda database: database.rows("PRAGMA data_version")[0])
        return (*(each.st_ino for each in there), *(each.st_mtime_ns for each in there[:1]), known)

    def experiment_dir(self, experiment_id: int) -> Path:
        """`<home>/experiments/<id>`, which `experiments.create` makes."""
        return self.experiments.directory(experiment_id)

    def agents_dir(self, experiment_id: int) -> Path:
        """Where what a driver and its agents know of one another is kept; it is of use on this machine alone."""
        return self.experiment_dir(experiment_id) / AGENTS

    def code_dir(self, experiment_id: int) -> Path:
        """Where the copy of the user's code belongs, below the experiment's directory."""
        return self.experiment_dir(experiment_id) / "code"

    def lock(self, experiment_id: int) -> AbstractContextManager[Database]:
        """Be the experiment's only driver, and its only writer; ExperimentBusy names the process that already is."""
        return self._databases.lock(experiment_id)

    def make_room(self) -> None:
        """Have the log of the database that is locked here begin anew: where the disk is full, a little can still be written."""
        self._databases.held().rows("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        self._databases.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
