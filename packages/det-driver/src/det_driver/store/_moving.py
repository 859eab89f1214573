"""An experiment as one file: its directory and its checkpoints in a tar, out of one home and into another."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path, PurePath
from typing import Any

from det_core.errors import StoreError
from det_driver.store._database import Database
from det_driver.store._databases import FILE
from det_driver.store._file import beside
from det_driver.store._records import ExperimentState
from det_driver.store._schema import EXPERIMENT
from det_driver.store._store import AGENTS, Store

_HEAD, _END = "det-experiment.json", "det-digests.json"
_FORMAT = 1
_LEFT_OUT = (AGENTS, "commands", "lock", FILE, f"{FILE}.new", *(path.name for path in beside(Path(FILE))))


def export_experiment(store: Store, id: int, file: Path, *, checkpoints: bool = True) -> int:
    """Write an experiment to a file that does not exist yet; return how many checkpoints it holds.

    Those are the ones that lie in the home, its trials' own and those that they started from. ExperimentBusy where it is driven.
    """
    if file.exists():
        raise StoreError(f"{file} exists already; name another file")
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with store.lock(id) as database, ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        copy = store.experiment_dir(id) / f".{FILE}.{secrets.token_hex(4)}"
        undo.callback(copy.unlink, missing_ok=True)
        database.run("VACUUM INTO ?", (str(copy),))
        uuids = [row.uuid for row in store.checkpoints.list(experiment_id=id) if row.state != "DELETED"]
        uuids += [trial.source_checkpoint for trial in store.trials.list(id) if trial.source_checkpoint]
        held = [u for u in dict.fromkeys(uuids) if checkpoints and (store.home / "checkpoints" / u).is_dir()]
        try:
            with tarfile.open(part, "x") as tar:
                _add_text(tar, _HEAD, {"format": _FORMAT, "experiment": id})
                digests = _add(tar, copy, f"experiment/{FILE}")
                for path in sorted(store.experiment_dir(id).iterdir()):
                    if path.name not in _LEFT_OUT and not path.name.startswith(f".{FILE}."):
                        digests |= _add(tar, path, f"experiment/{path.name}")
                for uuid in held:
                    digests |= _add(tar, store.home / "checkpoints" / uuid, f"checkpoints/{uuid}")
                _add_text(tar, _END, digests)
            os.rename(part, file)
        except OSError as error:
            raise StoreError(f"cannot write {file}: {error.strerror}; choose another place") from error
    return len(held)


def import_experiment(store: Store, file: Path) -> int:
    """Take over an experiment from a file; return its number here, the one that it had unless that is taken.

    So it is with its trials' numbers. StoreError for a file that is no export or is damaged; nothing of it is left then.
    """
    scratch = store.home / "experiments" / f".importing-{secrets.token_hex(4)}"
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        try:
            scratch.mkdir(mode=0o700)
            wanted = _unpack(file, scratch)
        except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{file} is no whole export of an experiment ({error}); make another with det export"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot import {file}: {error.strerror}; see that it can be read, and the home written"
            ) from error
        with closing(Database(scratch / "experiment" / FILE, EXPERIMENT)) as database:
            if database.rows("PRAGMA quick_check") != [("ok",)] or not database.row("SELECT 1 FROM experiment"):
                raise StoreError(f"{file} holds a damaged experiment; make another with det export")
            try:
                store.experiment_dir(wanted).mkdir()
                id = wanted
            except FileExistsError:
                id = store.experiments.new_directory()
            undo.callback(
                lambda: store.experiment_dir(id).rmdir() if not any(store.experiment_dir(id).iterdir()) else None
            )
            _renumber(store, database, id, scratch / "experiment")
            sql = "UPDATE experiment SET state = ?, pid = NULL, boot = NULL WHERE state = ?"
            database.run(sql, (ExperimentState.PAUSED, ExperimentState.ACTIVE))
            for saved in (scratch / "checkpoints").glob("*"):
                place = store.home / "checkpoints" / saved.name
                place.parent.mkdir(exist_ok=True)
                if not place.exists():
                    os.rename(saved, place)
                    undo.callback(shutil.rmtree, place, ignore_errors=True)
                database.run("UPDATE checkpoints SET storage = ? WHERE uuid = ?", (place.as_uri(), saved.name))
        os.rename(scratch / "experiment", store.experiment_dir(id))
        undo.pop_all()
    shutil.rmtree(scratch, ignore_errors=True)
    store.index.repair()
    return id


def _add(tar: tarfile.TarFile, path: Path, name: str) -> dict[str, str]:
    """Add a file or a directory; return the digests of the files."""

    def look(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isreg() or member.isdir() or member.issym() else None

    tar.add(path, name, filter=look)
    files = [each for each in (path, *path.rglob("*")) if each.is_file() and not each.is_symlink()]
    return {(PurePath(name) / each.relative_to(path)).as_posix(): _digest(each) for each in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add_text(tar: tarfile.TarFile, name: str, value: Any) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _unpack(file: Path, scratch: Path) -> int:
    """Unpack an export, compare its files with their digests, and return the number that the experiment had."""
    with tarfile.open(file, "r:") as tar:
        head = tar.next()
        if head is None or head.name != _HEAD:
            raise ValueError("it does not begin as one does")
        told = json.loads((tar.extractfile(head) or io.BytesIO()).read())
        if told["format"] != _FORMAT:
            raise ValueError(f"its format is {told['format']}, and this det reads {_FORMAT}")
        tar.extractall(scratch, filter="data")  # refuses whatever would lie elsewhere
    digests = json.loads((scratch / _END).read_bytes()) if (scratch / _END).is_file() else {}
    files = {p for p in scratch.rglob("*") if p.is_file() and not p.is_symlink()} - {scratch / _HEAD, scratch / _END}
    for path in files:
        if _digest(path) != digests.pop(path.relative_to(scratch).as_posix(), ""):
            raise ValueError(f"{path.name} is not as it was written")
    if digests or not (scratch / "experiment" / FILE).is_file():
        raise ValueError("files are missing")
    return int(told["experiment"])


def _renumber(store: Store, database: Database, id: int, directory: Path) -> None:
    """Give the trials other numbers where one of theirs is taken here, in the rows and in the directories' names."""
    blocks = database.rows("SELECT first, last FROM blocks")
    if not any(store.index.taken(first, last) for first, last in blocks):
        return
    low, high = database.rows("SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM trials")[0]
    first = store.index.block(id, high - low + 1)
    if first is None:
        raise StoreError(f"{store.index.path} gives no numbers for trials; see that it can be written")
    numbers = [number for (number,) in database.rows("SELECT id FROM trials")]
    by = first - low
    with database.transaction():
        database.run("PRAGMA defer_foreign_keys = ON")
        for table in ("trials", "runs", "metrics", "chunks", "checkpoints"):
            column = "id" if table == "trials" else "trial_id"
            database.run(f"UPDATE {table} SET {column} = -({column} + ?)", (by,))  # past those that are to move yet
            database.run(f"UPDATE {table} SET {column} = -{column}")
        database.run("UPDATE runs SET log_dir = 'trials/' || trial_id || '/run-' || number")
        database.run("DELETE FROM blocks")
        database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", (first, first + high - low))
    for number in sorted(numbers, reverse=by > 0):
        for below in ("trials/{}", "tensorboard/trial-{}"):
            if (directory / below.format(number)).is_dir():
                os.rename(directory / below.format(number), directory / below.format(number + by))
