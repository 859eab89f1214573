"""A client's home, and one checkpoint in it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from det_core.agent import hooked
from det_core.checkpoint import read_checkpoint
from det_core.config import from_json
from det_core.errors import CheckpointError
from det_core.plugins import Plugins, extensions_of
from det_core.storage import Storage

from ..config import load
from ..driver import DriverSettings, check_startable, create, environment_of, interpreter_of
from ..store import CheckpointRow, ExperimentRow, ExperimentState, Store


@dataclass(frozen=True)
class Home:
    """The directory of a store, what is installed beside it, and the environment of drivers that are started.

    The store is opened anew for each question, so that nothing is kept open.
    """

    path: Path
    environ: Mapping[str, str]

    @cached_property
    def plugins(self) -> Plugins:
        """The installed plugins."""
        return Plugins.installed()

    def reader(self) -> Store:
        """Open the store to read; StoreError where there is none."""
        return Store.reader(self.path)

    def writer(self) -> Store:
        """Open the store to write; it is made where there is none."""
        return Store(self.path)

    def make(self, config: str | Path | Mapping[str, Any], code: Path | None, name: str) -> ExperimentRow:
        """Make an experiment, paused; ConfigError for what is wrong with the configuration."""
        loaded = load(config, extensions=extensions_of(self.plugins)).config
        settings = DriverSettings.detect(self.environ, home=self.path)
        check_startable(loaded, settings)
        engine = str(type(loaded.engine).__struct_config__.tag) if loaded.engine else "local"
        with self.writer() as store:
            id = create(
                store, loaded, code, default_name=name, engine=engine, plugins=self.plugins, environments=settings.root
            )
            store.experiments.update(id, state=ExperimentState.PAUSED)
            return store.experiments.get(id)


class Checkpoint:
    """What a trial saved at one position.

    `batches` counts from the trial's start; `metric` is the searcher's there, if known; `storage` is where its files lie.
    """

    def __init__(self, home: Home, row: CheckpointRow) -> None:
        self._home, self._row = home, row
        self.uuid = row.uuid
        self.trial_id = row.trial_id
        self.batches = row.batches
        self.metric = row.metric
        self.framework = row.framework
        self.size = row.size
        self.created = row.created
        self.storage = row.storage

    @property
    def state(self) -> str:
        """What is left of its files: COMPLETED, PARTIALLY_DELETED or DELETED."""
        with self._home.reader() as store:
            return str(store.checkpoints.get(self.uuid).state)

    @property
    def metadata(self) -> dict[str, Any]:
        """What it was saved with."""
        return dict(self._row.metadata)

    def download(self, path: str | Path | None = None) -> str:
        """Copy its files, verified, to the directory `path`, by default `checkpoints/UUID`; return where they are.

        A directory that holds this checkpoint already is left as it is; one that holds anything else is refused with a
        CheckpointError.
        """
        target = Path(path) if path is not None else Path("checkpoints") / self.uuid
        storage = self._storage()
        with read_checkpoint(storage, self.uuid):
            pass
        if target.is_dir() and any(target.iterdir()):
            if not self._is_there(storage, target):
                raise CheckpointError(f"{target} is not empty; name a directory that does not exist yet")
            return str(target)
        storage.download(self.uuid, target)
        return str(target)

    def load(self, path: str | Path | None = None, **kwargs: Any) -> Any:
        """Download it and return what its framework makes of it: a trial, or a model.

        `kwargs` go to the framework's own function, such as `det_torch.load_trial_from_checkpoint_path`. Raises
        CheckpointError where no plugin can.
        """
        record = self._home.plugins.frameworks().get(self.framework)
        if record is None or not record.loader:
            raise CheckpointError(
                f"checkpoint {self.uuid} is of the framework {self.framework!r}, and no installed plugin loads those; "
                f"download() gives its files"
            )
        module, _, function = record.loader.rpartition(".")
        return getattr(importlib.import_module(module), function)(self.download(path), **kwargs)

    def export(self, path: str | Path, format: str) -> str:
        """Write its model to the new directory `path` in a form that is read without det; return where it is.

        `format` is one of its framework's, such as "safetensors" or "saved-model". The trial's code is run for that, in the
        environment of its experiment. Raises CheckpointError for a directory that holds something, and with what was said
        where its model has no such form.
        """
        target = Path(path)
        if target.exists() and any(target.iterdir()):
            raise CheckpointError(f"{target} is not empty; name a directory that does not exist yet")
        target.parent.mkdir(parents=True, exist_ok=True)
        settings = DriverSettings.detect(self._home.environ, home=self._home.path)
        with TemporaryDirectory(prefix=".det-export-", dir=target.absolute().parent) as scratch:
            source, made = self.download(Path(scratch) / "checkpoint"), Path(scratch) / "model"
            made.mkdir()
            with self._home.reader() as store:
                row = store.experiments.get(store.trials.get(self.trial_id).experiment_id)
                directory = store.experiment_dir(row.id)
            config = from_json(row.config)
            python = interpreter_of(directory, config, self._home.plugins, settings.root) or sys.executable
            words = [python, "-P", "-m", "det_core.exporting", source, str(made), self.framework, format]
            code = Path(source) / "code"
            done = subprocess.run(
                hooked(words, code),
                cwd=code if code.is_dir() else source,
                env=environment_of(self._home.environ, config, gpus=False),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                said = done.stderr.strip().splitlines()
                raise CheckpointError(
                    f"checkpoint {self.uuid} was not exported: {said[-1] if said else done.returncode}"
                )
            if target.exists():
                target.rmdir()
            made.rename(target)
        return str(target)

    def delete(self) -> None:
        """Delete its files for good."""
        self._storage().delete(self.uuid)
        with self._home.writer() as store:
            store.checkpoints.mark_deleted(self.uuid)

    def _storage(self) -> Storage:
        with self._home.reader() as store:
            experiment = store.experiments.get(store.trials.get(self.trial_id).experiment_id)
        return self._home.plugins.storage_of(from_json(experiment.config), self._home.path / "checkpoints")

    def _is_there(self, storage: Storage, target: Path) -> bool:
        held = {str(f.relative_to(target)): f.stat().st_size for f in target.rglob("*") if f.is_file()}
        return held == dict(storage.files(self.uuid))

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r}, trial_id={self.trial_id}, batches={self.batches})"
