"""Checkpoints."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tarfile import TarInfo
from tempfile import TemporaryDirectory
from typing import Any

from det_core.checkpoint import read_checkpoint
from det_core.config import to_json
from det_core.errors import CheckpointError
from det_core.storage import MANIFEST
from det_core.train.exporting import EXPERIMENT
from det_core.train.load_data import known_config
from det_node.agent import hooked

from ..store import CheckpointRow, TrialRow
from . import _calls
from ._home import AnyHome, check_empty

_BLOCK = 1 << 20


class Checkpoint:
    """The files that a trial saved at one position.

    - `batches` counts from the trial's start.
    - `metric` is the searcher's metric at that position, if known.
    - `validation_metrics` are all metrics at that position.
    - `storage` is the place of its files.
    """

    def __init__(self, home: AnyHome, row: CheckpointRow) -> None:
        self._home, self._row = home, row
        self.uuid = row.uuid
        self.trial_id = row.trial_id
        self.batches = row.batches
        self.metric = row.metric
        self.framework = row.framework
        self.size = row.size
        self.created = row.created
        self.validation_metrics = dict(row.validation or {})
        self.storage = row.storage

    @property
    def state(self) -> str:
        """The state of its files: COMPLETED, PARTIALLY_DELETED, DELETED or DAMAGED."""
        return str(self._home.call(_calls.checkpoint, self.uuid).state)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that it was saved with, or that `set_metadata` wrote since."""
        return dict(self._home.call(_calls.checkpoint, self.uuid).metadata)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace its metadata in the store. Its files do not change.

        Raises ExperimentBusy while its experiment runs.
        """
        self._home.call(
            _calls.set_metadata, self._trial_row().experiment_id, self.uuid, dict(metadata)
        )

    def download(self, path: str | Path | None = None) -> str:
        """Copy its files, verified, to the directory `path`, and return the path.

        `path` is `checkpoints/UUID` by default. If the directory has this checkpoint already,
        nothing is copied. Raises CheckpointError if it has anything else.
        """
        target = Path(path) if path is not None else Path("checkpoints") / self.uuid
        if target.is_dir() and any(target.iterdir()):
            if not _holds(target, self._home.call(_calls.checkpoint_files, self.uuid)):
                check_empty(target)
        else:
            self._home.download(self._row, target)
        return str(target)

    def archive(self) -> Iterator[bytes]:
        """Yield its files as a tar archive, in a directory named after its uuid.

        The first part is empty. It comes once the files agree with the manifest. Raises
        CheckpointError if they do not.
        """
        storage = self._home.local("Checkpoint.archive").storage(self._row)
        with read_checkpoint(storage, self.uuid) as (directory, manifest):
            yield b""
            for name in (MANIFEST, *manifest.files):
                with (directory / name).open("rb") as file:
                    entry = TarInfo(f"{self.uuid}/{name}")
                    entry.size = os.fstat(file.fileno()).st_size
                    entry.mtime = int(self.created)
                    yield entry.tobuf()
                    while block := file.read(_BLOCK):
                        yield block
                yield bytes(-entry.size % 512)
        yield bytes(1024)

    def load(self, path: str | Path | None = None, **kwargs: Any) -> Any:
        """Download it and return what its framework loads from it: a trial, or a model.

        It gets the secrets of its experiment, which the files mask, unless they are on a server.
        `kwargs` go to the framework's own function, such as
        `det_torch.load_trial_from_checkpoint_path`. Raises CheckpointError if no plugin can load
        it.
        """
        record = self._home.plugins.frameworks().get(self.framework)
        if record is None or not record.loader:
            raise CheckpointError(
                f"checkpoint {self.uuid} is of the framework {self.framework!r}, and no installed"
                " plugin loads those; download() gives its files"
            )
        module, _, function = record.loader.rpartition(".")
        with known_config(self._home.known_config(self._row)):
            return getattr(importlib.import_module(module), function)(self.download(path), **kwargs)

    def export(self, path: str | Path, format: str) -> str:
        """Write its model to the new directory `path` in a format that does not need det.

        Returns the path. `format` is one of its framework's, such as "safetensors" or
        "saved-model". The trial's code runs for that, in the environment of its experiment. Raises
        CheckpointError if the directory is not empty, or if the export fails, as for a model
        without this format, and StoreError for an import that is not trusted.
        """
        self._home.call(_calls.check_trusted, self.trial_id)
        target = Path(path)
        check_empty(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        python, environ = self._home.exporter(self._row)
        with TemporaryDirectory(prefix=".det-export-", dir=target.absolute().parent) as scratch:
            source, made = self.download(Path(scratch) / "checkpoint"), Path(scratch) / "model"
            made.mkdir()
            if (config := self._home.known_config(self._row)) is not None:
                # Beside the checkpoint, where no exporter copies it.
                Path(scratch, EXPERIMENT).touch(mode=0o600)
                Path(scratch, EXPERIMENT).write_text(to_json(config), encoding="utf-8")
            words = [
                python,
                "-P",
                "-m",
                "det_core.train.exporting",
                source,
                str(made),
                self.framework,
                format,
            ]
            code = Path(source) / "code"
            done = subprocess.run(
                hooked(words, code),
                cwd=code if code.is_dir() else source,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                errors = done.stderr.strip().splitlines()
                raise CheckpointError(
                    f"checkpoint {self.uuid} was not exported:"
                    f" {errors[-1] if errors else done.returncode}"
                )
            if target.exists():
                target.rmdir()
            made.rename(target)
        return str(target)

    def delete(self) -> None:
        """Delete its files. They cannot be restored.

        Raises StoreError if it is a version of a model.
        """
        self._home.call(_calls.delete_checkpoint, self._trial_row().experiment_id, self.uuid)

    def _trial_row(self) -> TrialRow:
        return self._home.call(_calls.trial, self.trial_id)

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r}, trial_id={self.trial_id}, batches={self.batches})"


def _holds(target: Path, written: Mapping[str, int]) -> bool:
    """Return whether a directory has these files, of these sizes in bytes, and no others.

    Others may come and go while it is read.
    """
    try:
        if any((target / name).stat().st_size != size for name, size in written.items()):
            return False
    except OSError:
        return False
    # Importing its code, as `load` does, adds directories __pycache__.
    return all(
        (name := path.relative_to(target)).as_posix() in written or "__pycache__" in name.parts
        for path in target.rglob("*")
        if path.is_file()
    )
