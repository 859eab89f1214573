"""Finds the start of a run of `Trainer.fit`: the first batch, or a checkpoint of
det or Determined.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from det_core import Adapter, CheckpointError, Framework, Progress, RunInfo, restore
from det_core.checkpoint import read_checkpoint, read_json_object
from det_core.storage import MANIFEST, LocalStorage, Storage

from .history import FILE, History
from .result import SavedCheckpoint

_FACTS = ("loop.json", "load_data.json", FILE)


@dataclass(frozen=True, kw_only=True)
class Start:
    """A checkpoint `uuid` of `storage`, a directory that Determined wrote, or neither.

    - `batches`: its position.
    - `trial_id`: the trial that saved it.
    - `seed`: the seed of its data's order, if it has one.
    - `warm`: whether it is a warm start. Models, optimizers and schedulers are restored then, and
      batches are counted from 0.
    """

    uuid: str | None = None
    storage: Storage | None = None
    directory: Path | None = None
    batches: int = 0
    trial_id: int = 0
    seed: int | None = None
    history: str | None = None
    warm: bool = False

    @property
    def name(self) -> str | None:
        """The uuid of the checkpoint, or the name of the directory, for callbacks."""
        return self.uuid or (self.directory.name if self.directory else None)

    def remember(self, history: History) -> None:
        """Restore the reports and checkpoints of earlier runs."""
        if self.history is not None:
            history.read(self.history, self.batches)
        # A checkpoint's history does not contain the checkpoint itself.
        if self.uuid is not None and self.storage is not None and not self.warm:
            history.keep(SavedCheckpoint(self.uuid, self.batches, self.storage.url(self.uuid)))

    def restore(
        self, adapter: Adapter[Any], framework: Framework, info: RunInfo
    ) -> Progress | None:
        """Restore an adapter and return the loop's progress."""
        if self.directory is not None:
            adapter.load(self.directory)
            return None if self.warm else Progress(batches=self.batches)
        if self.uuid is None or self.storage is None:
            return None
        return restore(adapter, framework, replace(info, checkpoint=self.uuid), self.storage)


def find(latest: str | Path | None, storage: Storage) -> Start:
    """Return the start that a path or a uuid names. Raises CheckpointError if it is neither."""
    if latest is None:
        return Start()
    path = Path(latest)
    if (path / MANIFEST).is_file():
        return _read(path.resolve().name, LocalStorage(path.resolve().parent))
    if path.is_dir():
        return Start(directory=path, batches=_steps(path))
    if not _plain(str(latest)) or not storage.exists(str(latest)):
        known = ", ".join(sorted(storage.list())[:5]) or "none"
        raise CheckpointError(
            f"latest_checkpoint is {str(latest)!r}, which is neither the directory of a checkpoint"
            f" nor the uuid of one in {storage!r}; there: {known}"
        )
    return _read(str(latest), storage)


def _read(uuid: str, storage: Storage) -> Start:
    with read_checkpoint(storage, uuid, lambda name: name in _FACTS) as (path, manifest):
        loop, load = _json(path / "loop.json"), _json(path / "load_data.json")
        history = (path / FILE).read_text() if (path / FILE).is_file() else None
    return Start(
        uuid=uuid,
        storage=storage,
        batches=loop.get("batches", manifest.batches),
        trial_id=loop.get("trial_id", 0),
        seed=load.get("trial_seed"),
        history=history,
    )


def _steps(directory: Path) -> int:
    """Return the number of batches that Determined had trained.

    Its versions have two names for it.
    """
    metadata = _json(directory / "metadata.json")
    return int(metadata.get("steps_completed", metadata.get("latest_batch", 0)))


def _json(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _plain(name: str) -> bool:
    return all(c.isalnum() or c in "-_." for c in name) and not name.startswith(".") and bool(name)
