"""Where a client's experiments are: a home of this machine, or a server."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Concatenate, ParamSpec, TypeVar

from det_core.checkpoint import read_checkpoint
from det_core.config import ExperimentConfig, to_builtins
from det_core.errors import CheckpointError, DetError
from det_core.hooks import Plugins, extensions_of
from det_core.storage import Storage

from ..config import load
from ..driver import (
    DriverSettings,
    check_startable,
    create,
    environment_of,
    interpreter_of,
    reopen,
    start_driver,
)
from ..store import (
    CheckpointRow,
    ExperimentRow,
    Store,
    Visible,
    check_trusted,
    refuse_code,
    storage_of_checkpoint,
)

P = ParamSpec("P")
R = TypeVar("R")


class AnyHome(ABC):
    """Executes queries and changes on experiments, and moves code and checkpoints.

    Queries and changes are the functions of `_calls`.
    """

    @cached_property
    def plugins(self) -> Plugins:
        """The installed plugins."""
        return Plugins.installed()

    @abstractmethod
    def call(self, function: Callable[Concatenate[Home, P], R], *args: P.args, **kw: P.kwargs) -> R:
        """Return what a query or a change returns for the home of the experiments."""

    @abstractmethod
    def local(self, what: str) -> Home:
        """Return the home. Raises DetError on a server, which does not do `what`."""

    @abstractmethod
    def make(
        self, config: str | Path | Mapping[str, Any], code: Path | None, name: str, *, start: bool
    ) -> int:
        """Make an experiment, and start it or leave it paused. Return its number.

        Raises ConfigError for mistakes in the configuration.
        """

    @abstractmethod
    def fork(
        self, row: ExperimentRow, config: str | Path | Mapping[str, Any] | None, *, start: bool
    ) -> int:
        """Make another experiment with the code of one, by default with its configuration."""

    @abstractmethod
    def download(self, row: CheckpointRow, target: Path) -> None:
        """Copy the files of a checkpoint, verified, to a directory that is empty or not there."""

    @abstractmethod
    def known_config(self, row: CheckpointRow) -> ExperimentConfig | None:
        """Return the configuration of a checkpoint's experiment if its secrets are here."""

    @abstractmethod
    def exporter(self, row: CheckpointRow) -> tuple[str, dict[str, str]]:
        """Return the interpreter that exports a checkpoint's model, and its environment."""


class Home(AnyHome):
    """The directory of a store, and the environment of new drivers.

    Each query opens the store again, so that no file stays open. `visible` are the experiments that
    exist for its user, by default all. `user` owns the experiments that are made.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        visible: Visible | None = None,
        user: str = "",
    ) -> None:
        self.path, self.environ, self.visible, self.user = path, environ, visible, user

    def reader(self) -> Store:
        """Open the store to read. Raises StoreError if there is none."""
        return Store.reader(self.path, self.visible)

    def writer(self) -> Store:
        """Open the store to write. It is made if there is none."""
        return Store(self.path, visible=self.visible)

    def call(self, function: Callable[Concatenate[Home, P], R], *args: P.args, **kw: P.kwargs) -> R:
        """Call the function."""
        return function(self, *args, **kw)

    def local(self, what: str) -> Home:
        """Return this home."""
        return self

    def make(
        self, config: str | Path | Mapping[str, Any], code: Path | None, name: str, *, start: bool
    ) -> int:
        """Make an experiment, and start it or leave it paused."""
        loaded = load(config, extensions=extensions_of(self.plugins)).config
        settings = DriverSettings.detect(self.environ, home=self.path)
        check_startable(loaded, settings)
        engine = str(type(loaded.engine).__struct_config__.tag) if loaded.engine else "local"
        with self.writer() as store:
            id = create(
                store,
                loaded,
                code,
                default_name=name,
                engine=engine,
                plugins=self.plugins,
                environments=settings.root,
                origin={"user": self.user} if self.user else {},
                paused=True,
            )
        if start:
            self.start(id)
        return id

    def fork(
        self, row: ExperimentRow, config: str | Path | Mapping[str, Any] | None, *, start: bool
    ) -> int:
        """Make another experiment with the code of one."""
        with self.reader() as store:
            check_trusted(store, row.id)
            code = store.code_dir(row.id)
            config = to_builtins(store.experiments.config(row.id)) if config is None else config
        return self.make(config, code, row.name, start=start)

    def start(self, id: int) -> None:
        """Resume an experiment with a driver in the background."""
        with self.writer() as store:
            reopen(store, id)
        with self.reader() as store:
            start_driver(store, self.path, id, self.environ)

    def storage(self, row: CheckpointRow) -> Storage:
        """Return the storage that a checkpoint is in."""
        with self.reader() as store:
            return storage_of_checkpoint(store, row, self.plugins)

    def download(self, row: CheckpointRow, target: Path) -> None:
        """Copy the files of a checkpoint, verified."""
        storage = self.storage(row)
        with read_checkpoint(storage, row.uuid):
            pass
        storage.download(row.uuid, target)

    def known_config(self, row: CheckpointRow) -> ExperimentConfig:
        """Return the configuration of a checkpoint's experiment with its secrets."""
        with self.reader() as store:
            id = store.trials.get(row.trial_id).experiment_id
            refuse_code(store, id)
            return store.experiments.config(id)

    def exporter(self, row: CheckpointRow) -> tuple[str, dict[str, str]]:
        """Return the interpreter of the experiment's environment."""
        settings = DriverSettings.detect(self.environ, home=self.path)
        with self.reader() as store:
            id = store.trials.get(row.trial_id).experiment_id
            refuse_code(store, id)
            directory, config = store.experiment_dir(id), store.experiments.config(id)
        python = interpreter_of(directory, config, self.plugins, settings.root) or sys.executable
        return python, environment_of(self.environ, config, gpus=False)


def check_empty(target: Path) -> None:
    """Raise CheckpointError for a directory that has files."""
    if target.exists() and any(target.iterdir()):
        raise CheckpointError(f"{target} is not empty; name a directory that does not exist yet")


def check_name(name: str) -> str:
    """Return the name of a file that is below a directory. Raises DetError for any other name."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in name:
        raise DetError(f"{name!r} is no name of a file below a directory")
    return name
