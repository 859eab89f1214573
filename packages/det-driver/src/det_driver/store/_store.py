"""The store of experiments: one file and one directory tree below a home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from det_core.errors import StoreError
from det_driver.store._checkpoints import Checkpoints
from det_driver.store._database import Database
from det_driver.store._experiments import Experiments
from det_driver.store._journal import CommandQueue, Journal
from det_driver.store._locks import ExperimentLock, Slots
from det_driver.store._metrics import Metrics
from det_driver.store._trials import Runs, Trials


class Store:
    """Everything det knows about the experiments in `<home>/det.db` (SQLite, made when it is not there).

    For one thread of one process; another opens its own, which costs less than a millisecond. Readers never wait for
    a writer nor a writer for readers. Every method is atomic; `transaction()` makes several so.
    """

    def __init__(self, home: Path, *, readonly: bool = False) -> None:
        self.home = Path(home).absolute()
        if not readonly:
            self._make_home()
        elif not (self.home / "det.db").exists():
            raise StoreError(f"no store in {self.home}; det run makes one")
        self._database = Database(self.home / "det.db", readonly=readonly)
        self.experiments = Experiments(self._database, self.home)
        self.trials = Trials(self._database)
        self.metrics = Metrics(self._database)
        self.runs = Runs(self._database, self.metrics, self.home)
        self.checkpoints = Checkpoints(self._database)
        self.journal = Journal(self._database)
        self.slots = Slots(self._database)
        self.commands = CommandQueue(self._database)

    @classmethod
    def reader(cls, home: Path) -> Self:
        """Open for reading only, also while a driver writes, also on a read-only disk."""
        return cls(home, readonly=True)

    def _make_home(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the home {self.home}: {error.strerror}; choose one that you can write to"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """All changes inside are written together, or none; a reader sees one instant's state inside."""
        with self._database.transaction():
            yield self

    def experiment_dir(self, experiment_id: int) -> Path:
        """`<home>/experiments/<id>`, which `experiments.create` makes."""
        return self.experiments.directory(experiment_id)

    def code_dir(self, experiment_id: int) -> Path:
        """Where the copy of the user's code belongs, below the experiment's directory."""
        return self.experiment_dir(experiment_id) / "code"

    @contextmanager
    def lock(self, experiment_id: int) -> Iterator[None]:
        """Be the experiment's only driver; ExperimentBusy names the process that already is."""
        self.experiments.get(experiment_id)
        with ExperimentLock(experiment_id, self.experiment_dir(experiment_id)):
            self.experiments.get(experiment_id)  # it may have been deleted in between
            yield

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
