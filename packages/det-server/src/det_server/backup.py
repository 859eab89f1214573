"""Backups of a home that is in use, and their restoration to another one."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from det_core.errors import DetError, StoreError
from det_core.support.installation import own_version
from det_driver.store import CheckpointState, ExperimentState, Store

MANIFEST = "backup.json"
FORMAT = 1
_CHECKPOINTS, _EXPERIMENTS, _INDEX = "checkpoints", "experiments", "index.db"
# What can be made again, and what concerns the processes that run here.
_NOT_OF_HOME = {"disk-alert", "environments", "uploads", _CHECKPOINTS, _EXPERIMENTS, _INDEX}
_NOT_OF_EXPERIMENT = {"agents", "commands", "lock", "spool"}
_NOT_ANYWHERE = ("-wal", "-shm", "-journal", ".lock", ".new")
_ATTEMPTS = 5


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The index of a backup: the size and the SHA-256 of each file, by its path."""

    format: int
    det: str
    made: float
    checkpoints: bool
    files: dict[str, tuple[int, str]]


_decode = msgspec.json.Decoder(Manifest).decode


class Backup(msgspec.Struct):
    """The result of a backup: the number of files, their bytes, and the links that were skipped."""

    files: int
    bytes: int
    left_out: list[str]


def back_up(home: Path, target: Path, *, checkpoints: bool) -> Backup:
    """Write a backup of a home to a directory that is not there or is empty.

    Drivers and a server may run. Each database is copied as it was at one instant. With
    `checkpoints`, the checkpoints that its trials resume from are copied, too. `target` appears
    when all of it is written. Raises DetError where it cannot be written, or the home cannot be
    read.
    """
    if not Store.is_at(home):
        raise DetError(f"{home} has no experiments to back up; choose another --home")
    _check_empty(target)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        part.mkdir(mode=0o700, parents=True)
        copier = _Copier(home, part)
        copier.copy_directory(Path(), skip=_NOT_OF_HOME)
        for each in sorted((home / _EXPERIMENTS).glob("[0-9]*")):
            copier.copy_experiment(each.name, checkpoints=checkpoints)
        # The last one, so that it knows all numbers that the copied experiments have.
        _copy_database(home / _INDEX, part / _INDEX)
        with closing(_connect(part / _INDEX)) as index:
            # These processes do not run where it is restored.
            index.executescript("DELETE FROM leases; DELETE FROM waiting")
        files = {path: _digest(part / path) for path in _files(part)}
        manifest = Manifest(FORMAT, own_version(), time.time(), checkpoints, files)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _move(part, target)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DetError(f"cannot back up {home} to {target}: {reason}; nothing is left of it") from (
            error
        )
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Backup(len(files), sum(size for size, _ in files.values()), copier.left_out)


def restore(source: Path, home: Path) -> list[int]:
    """Write a backup to a home that is not there or is empty. Return the experiments to resume.

    The whole backup is verified before anything is written. Experiments that were running are
    paused, because they may still be running where the backup was made. Raises DetError for a
    damaged backup.
    """
    manifest = _verify(source)
    _check_empty(home)
    part = home.with_name(f".{home.name}.{secrets.token_hex(4)}")
    try:
        part.mkdir(mode=0o700, parents=True)
        for name in manifest.files:
            place = part / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy(source / name, place)
            place.chmod(place.stat().st_mode & 0o700)
            if _digest(place) != manifest.files[name]:
                raise DetError(f"{source / name} changed while it was restored; try again")
        (part / _EXPERIMENTS).mkdir(exist_ok=True)
        paused = _pause_all(part, manifest.made)
        _move(part, home)
    except OSError as error:
        raise DetError(
            f"cannot restore {source} to {home}: {error.strerror}; nothing is left of it"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return paused


class _Copier:
    """Copies the files of a home."""

    def __init__(self, home: Path, target: Path) -> None:
        self._home = home
        self._target = target
        self.left_out: list[str] = []

    def copy_experiment(self, name: str, *, checkpoints: bool) -> None:
        """Copy an experiment, unless it is deleted meanwhile."""
        place = Path(_EXPERIMENTS, name)
        if not (self._home / place / "experiment.db").is_file():
            return
        try:
            for _ in range(_ATTEMPTS):
                self.copy_directory(place, skip=_NOT_OF_EXPERIMENT)
                # A driver may have replaced a checkpoint after the database was copied.
                if not checkpoints or self._copy_checkpoints(int(name)):
                    break
            else:
                raise DetError(
                    f"experiment {name} replaces its checkpoints faster than they are copied; pause"
                    f" it for the backup: det pause {name}"
                )
        except (OSError, sqlite3.Error, StoreError):
            if (self._home / place / "experiment.db").is_file():
                raise
        if not (self._home / place / "experiment.db").is_file():
            shutil.rmtree(self._target / place, ignore_errors=True)

    def _copy_checkpoints(self, id: int) -> bool:
        """Copy the checkpoints of a copied experiment. Return whether those in use are there."""
        with Store.reader(self._target) as store:
            rows, trials = store.checkpoints.list(experiment_id=id), store.trials.list(id)
        needed = {trial.latest_checkpoint for trial in trials}
        kept = [row.uuid for row in rows if row.state is not CheckpointState.DELETED]
        # Those from which trials start may be of an experiment that was deleted.
        kept += [trial.source_checkpoint for trial in trials if trial.source_checkpoint]
        for uuid in dict.fromkeys(kept):
            place = Path(_CHECKPOINTS, uuid)
            is_there = (self._target / place).exists()
            # A uuid in a database is no authority to leave the directory.
            if is_there or place.name != uuid or not (self._home / place).is_dir():
                continue
            # It may be deleted file by file meanwhile.
            with suppress(FileNotFoundError):
                self.copy_directory(place, whole=True)
            if not (self._home / place).is_dir():
                shutil.rmtree(self._target / place, ignore_errors=True)
        with Store.reader(self._home) as store:
            latest = {trial.latest_checkpoint for trial in store.trials.list(id)} - {None}
        held = {each for each in latest if (self._home / _CHECKPOINTS / str(each)).is_dir()}
        missing = {
            each
            for each in needed - {None}
            if not (self._target / _CHECKPOINTS / str(each)).is_dir()
        }
        # Those of another storage are in no home.
        return not (held and missing)

    def copy_directory(
        self, place: Path, skip: Collection[str] = (), *, whole: bool = False
    ) -> None:
        """Copy the files in a directory of the home, except for names in `skip`.

        With `whole` these are files of users, which are copied whatever their names are.
        """
        target = self._target / place
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in sorted((self._home / place).iterdir()):
            name, here = each.name, target / each.name
            if name in skip or (not whole and (name.endswith(_NOT_ANYWHERE) or name[0] == ".")):
                continue
            # Files of logs and checkpoints come and go.
            with suppress(FileNotFoundError):
                if each.is_symlink():
                    self.left_out.append(str(place / name))
                elif each.is_dir():
                    self.copy_directory(place / name, whole=whole or name == "code")
                elif each.suffix == ".db" and not whole:
                    here.unlink(missing_ok=True)
                    _copy_database(each, here)
                elif each.is_file() and (whole or not each.match("run-*/process*.json")):
                    shutil.copy(each, here)


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None)


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database as it is at one instant. Nobody who writes it waits for that."""
    if not source.exists():
        raise FileNotFoundError(source)
    with closing(_connect(source, "ro")) as read, closing(_connect(target, "rwc")) as copy:
        read.backup(copy)
        # So it is one file.
        copy.execute("PRAGMA journal_mode = DELETE")


def _check_empty(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise DetError(f"{target} is not empty; name a directory that is not there yet")


def _files(root: Path) -> Iterator[str]:
    """Yield the paths of all files below a directory, without following links."""
    for place, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            yield str(Path(place, name).relative_to(root))


def _digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _move(part: Path, target: Path) -> None:
    """Give a complete directory its name, once it is on the disk."""
    os.sync()
    part.rename(target)


def _verify(source: Path) -> Manifest:
    """Return the manifest of a backup whose files are all there and unchanged."""
    try:
        manifest = _decode((source / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DetError(
            f"{source} is no whole backup of a home ({error}); make one: det server backup"
        ) from error
    if manifest.format > FORMAT:
        raise DetError(f"{source} is a backup of a newer det ({manifest.det}); upgrade det-server")
    there = set(_files(source)) - {MANIFEST}
    for wrong in sorted(there ^ manifest.files.keys()):
        problem = "is missing" if wrong in manifest.files else "does not belong to it"
        raise DetError(f"the backup {source} is damaged: {wrong} {problem}; use another one")
    for name in sorted(there):
        path = source / name
        if path.is_symlink() or not path.is_file() or _digest(path) != manifest.files[name]:
            raise DetError(f"the backup {source} is damaged: {name} has changed; use another one")
    return manifest


def _pause_all(home: Path, made: float) -> list[int]:
    """Pause the experiments that were running, and return their numbers."""
    paused = []
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
    with Store(home) as store:
        # The index was copied at another instant than the experiments.
        store.index.repair()
        for summary in store.experiments.list(archived=None):
            id = summary.experiment.id
            if summary.experiment.state is ExperimentState.ACTIVE:
                reason = f"it is restored from a backup of {day}; go on with: det resume {id}"
                store.experiments.update(
                    id, state=ExperimentState.PAUSED, pid=None, boot=None, reason=reason
                )
                paused.append(id)
    return sorted(paused)
