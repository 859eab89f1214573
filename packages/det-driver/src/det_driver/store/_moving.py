"""Move an experiment between homes as one tar file of its directory and its checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from det_core.config import MASK, ExperimentConfig, secret_masker, to_builtins
from det_core.errors import StoreError
from det_core.support.archives import extract
from det_core.support.paths import read_regular
from det_driver.store._bulk import ranges
from det_driver.store._checkpoints import CARRIED
from det_driver.store._database import Database
from det_driver.store._databases import FILE
from det_driver.store._file import list_sidecars
from det_driver.store._foreign import check_import
from det_driver.store._records import ExperimentState
from det_driver.store._runs import LAST_SEEN
from det_driver.store._schema import EXPERIMENT, UNREADABLE
from det_driver.store._secrets import FILE as SECRETS
from det_driver.store._secrets import find_unmasked
from det_driver.store._store import AGENTS, Store
from det_driver.store._trust import FILE as UNTRUSTED
from det_driver.store._trust import distrust

_HEAD, _END = "det-experiment.json", "det-digests.json"
_FORMAT = 1
_HIGHEST = 10**9
"""A trial with such a number gets another one, as the next trials of the home follow it."""
_LEFT_OUT = (
    AGENTS,
    SECRETS,
    f".{SECRETS}",
    UNTRUSTED,
    "commands",
    "lock",
    FILE,
    f"{FILE}.new",
    *(path.name for path in list_sidecars(Path(FILE))),
)


def export_experiment(
    store: Store,
    id: int,
    file: Path,
    mask_text: Callable[[str], str] = str,
    *,
    checkpoints: bool = True,
) -> int:
    """Write an experiment to a new file, and return the number of checkpoints in it.

    The checkpoints are those of its trials and those from which they started, as far as the files
    are in the home. Two kinds of secrets are left out: those of its configuration, and those that
    `mask_text` removes from the YAML files of its code. Raises ExperimentBusy while it is driven.
    """
    if file.exists():
        raise StoreError(f"{file} exists already; name another file")
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with store.lock(id) as database, ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        copy = store.experiment_dir(id) / f".{FILE}.{secrets.token_hex(4)}"
        undo.callback(copy.unlink, missing_ok=True)
        database.run("VACUUM INTO ?", (str(copy),))
        config = store.experiments.config(id)
        _mask_secrets(copy, config)
        masks = _masked_code(store.code_dir(id), config, mask_text)
        uuids = [
            row.uuid for row in store.checkpoints.list(experiment_id=id) if row.state != "DELETED"
        ]
        uuids += [
            trial.source_checkpoint for trial in store.trials.list(id) if trial.source_checkpoint
        ]
        held = [
            u
            for u in dict.fromkeys(uuids)
            if checkpoints and (store.home / "checkpoints" / u).is_dir()
        ]
        try:
            with (
                os.fdopen(
                    os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
                ) as stream,
                tarfile.open(fileobj=stream, mode="w") as tar,
            ):
                _add_text(tar, _HEAD, {"format": _FORMAT, "experiment": id})
                digests = _add(tar, copy, f"experiment/{FILE}")
                for path in sorted(store.experiment_dir(id).iterdir()):
                    if path.name not in _LEFT_OUT and not path.name.startswith(f".{FILE}."):
                        digests |= _add(tar, path, f"experiment/{path.name}", masks)
                for uuid in held:
                    digests |= _add(tar, store.home / "checkpoints" / uuid, f"checkpoints/{uuid}")
                _add_text(tar, _END, digests)
            os.rename(part, file)
        except OSError as error:
            raise StoreError(
                f"cannot write {file}: {error.strerror}; choose another place"
            ) from error
    return len(held)


def import_experiment(store: Store, file: Path) -> int:
    """Import an experiment from a file, and return its number in this home.

    The experiment and its trials keep their numbers, unless these are taken. Nothing of it runs
    before `trust`. Raises StoreError for a file that is damaged or no export. Nothing is left then.
    """
    scratch = store.home / "experiments" / f".importing-{secrets.token_hex(4)}"
    # Make the index before the first experiment: a home with experiments and no index has lost it.
    store.index.attempt(lambda database: None)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        try:
            scratch.mkdir(mode=0o700)
            wanted = _unpack(file, scratch)
        except (tarfile.TarError, EOFError, MemoryError, *UNREADABLE) as error:
            raise StoreError(
                f"{file} is no whole export of an experiment ({_one_line(error)}); make another"
                " with det export"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot import {file}: {error.strerror or error}; see that it can be read, and the"
                " home written"
            ) from error
        with closing(Database(scratch / "experiment" / FILE, EXPERIMENT)) as database:
            if database.rows("PRAGMA quick_check") != [("ok",)] or not database.row(
                "SELECT 1 FROM experiment"
            ):
                raise StoreError(f"{file} holds a damaged experiment; make another with det export")
            try:
                store.experiment_dir(wanted).mkdir()
                id = wanted
            except FileExistsError:
                id = store.experiments.new_directory()
            undo.callback(
                lambda: (
                    store.experiment_dir(id).rmdir()
                    if not any(store.experiment_dir(id).iterdir())
                    else None
                )
            )
            _renumber(store, database, id, scratch / "experiment")
            database.run("UPDATE experiment SET pid = NULL, boot = NULL")
            sql = "UPDATE experiment SET state = ? WHERE state = ?"
            database.run(sql, (ExperimentState.PAUSED, ExperimentState.ACTIVE))
            # No process here is one of its runs.
            lost = (
                # The names are constants of ours.
                f"UPDATE runs AS r SET ended = {LAST_SEEN}, outcome = 'LOST' WHERE ended IS NULL"  # nosec B608
            )
            database.run(lost)
            database.run("UPDATE checkpoints SET imported = 1")
            # They were for webhooks of the other home.
            database.run("DELETE FROM alerts")
            for saved in (scratch / "checkpoints").glob("*"):
                place = store.home / "checkpoints" / saved.name
                place.parent.mkdir(exist_ok=True)
                carried = not place.exists()
                if carried:
                    os.rename(saved, place)
                    undo.callback(shutil.rmtree, place, ignore_errors=True)
                database.run(
                    "UPDATE checkpoints SET storage = ?, imported = ? WHERE uuid = ?",
                    (place.as_uri(), CARRIED if carried else 1, saved.name),
                )
        _keep_no_recording(scratch / "experiment" / "outside.json")
        distrust(scratch / "experiment")
        os.rename(scratch / "experiment", store.experiment_dir(id))
        undo.pop_all()
    shutil.rmtree(scratch, ignore_errors=True)
    store.index.repair()
    return id


def _keep_no_recording(file: Path) -> None:
    """Note that the recording of a script is kept elsewhere, from where det sync sends more."""
    if not file.exists():
        return
    try:
        ids = json.loads(read_regular(file))
        sources = [*ids.get("sources", ()), *filter(None, [ids.pop("uid", None)])]
        file.write_text(json.dumps({**ids, "sources": sources, "wanted": None, "user": None}))
    except (OSError, *UNREADABLE):
        file.unlink()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _mask_secrets(copy: Path, config: ExperimentConfig) -> None:
    """Mask the secrets in the copy, so that no page of the file holds them."""
    with closing(Database(copy, EXPERIMENT)) as database:
        if statements := find_unmasked(database, config):
            with database.transaction():
                for statement in statements:
                    database.run(*statement)
            database.run("VACUUM")
            database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
            database.rows("PRAGMA journal_mode = DELETE")


def _masked_code(
    code: Path, config: ExperimentConfig, mask_text: Callable[[str], str]
) -> dict[Path, bytes]:
    """Return the masked content of code files that hold secrets.

    These are YAML and JSON configurations, and other texts that repeat a secret of `config`.
    Python code stays as it is.
    """
    found, mask = {}, secret_masker(config)
    for path in code.rglob("*"):
        kind = path.suffix.lower()
        if kind != ".py" and path.is_file() and not path.is_symlink():
            with suppress(UnicodeDecodeError):
                text = path.read_bytes().decode()
                masked = mask(text)
                if kind in (".yaml", ".yml", ".json"):
                    masked = mask_text(masked)
                if masked != text:
                    found[path] = masked.encode()
    return found


def missing_secrets(config: ExperimentConfig) -> list[str]:
    """Return the names of the variables and keys whose secrets an export has left out."""
    return sorted(set(_find_masked(to_builtins(config), "")))


def _find_masked(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, str) and MASK in value:
        name, given, _ = value.partition(f"={MASK}")
        yield name if given else key
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _find_masked(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_masked(inner, key)


def _add(
    tar: tarfile.TarFile,
    path: Path,
    name: str,
    instead: Mapping[Path, bytes] = MappingProxyType({}),
) -> dict[str, str]:
    """Add a file or a directory to the archive, and return the digests of the files.

    `instead` has the content of files that replaces their own.
    """
    others = {
        (PurePath(name) / each.relative_to(path)).as_posix(): each
        for each in instead
        if each.is_relative_to(path)
    }

    def look(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if (other := others.get(member.name)) is not None:
            member.size = len(instead[other])
            tar.addfile(member, io.BytesIO(instead[other]))
            return None
        return member if member.isreg() or member.isdir() or member.issym() else None

    tar.add(path, name, filter=look)
    files = [each for each in (path, *path.rglob("*")) if each.is_file() and not each.is_symlink()]
    digests = {
        (PurePath(name) / each.relative_to(path)).as_posix(): _digest(each) for each in files
    }
    return digests | {
        name: hashlib.sha256(instead[other]).hexdigest() for name, other in others.items()
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add_text(tar: tarfile.TarFile, name: str, value: Any) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _unpack(file: Path, scratch: Path) -> int:
    """Unpack an export, check the digests of its files, and return its experiment's number."""
    with tarfile.open(file, "r:") as tar:
        head = tar.next()
        if head is None or head.name != _HEAD:
            raise ValueError("it does not begin as one does")
        header = json.loads((tar.extractfile(head) or io.BytesIO()).read())
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is {header['format']}, and this det reads {_FORMAT}")
        extract(tar, scratch)
    digests = json.loads((scratch / _END).read_bytes()) if (scratch / _END).is_file() else {}
    files = {p for p in scratch.rglob("*") if p.is_file() and not p.is_symlink()} - {
        scratch / _HEAD,
        scratch / _END,
    }
    for path in files:
        if _digest(path) != digests.pop(path.relative_to(scratch).as_posix(), ""):
            raise ValueError(f"{path.name} is not as it was written")
    if digests or not (scratch / "experiment" / FILE).is_file():
        raise ValueError("files are missing")
    check_import(scratch)
    number = header["experiment"]
    if type(number) is not int or not 0 < number < 10**9:
        raise ValueError(f"it is of experiment {number!r}")
    return number


def _renumber(store: Store, database: Database, id: int, directory: Path) -> None:
    """Give the trials new numbers if any of theirs is taken in this home, or far above all others.

    This changes the rows and the names of directories. The numbers of the next trials follow those
    of the trials, and not what the database says.
    """
    old = [number for (number,) in database.rows("SELECT id FROM trials ORDER BY id")]
    spans = ranges(old)
    if any(last >= _HIGHEST or store.index.is_any_used(first, last) for first, last in spans):
        first = store.index.block(id, len(old))
        if first is None:
            raise StoreError(
                f"{store.index.path} gives no numbers for trials; see that it can be written"
            )
        new = dict(zip(old, range(first, first + len(old)), strict=True))
        _renumber_rows(database, new)
        _rename(directory, "trials/{}", new)
        _rename(directory, "tensorboard/trial-{}", new)
        spans = [(first, first + len(old) - 1)]
    with database.transaction():
        database.run("DELETE FROM blocks")
        for span in spans:
            database.run("INSERT INTO blocks (first, last) VALUES (?, ?)", span)


def _renumber_rows(database: Database, new: Mapping[int, int]) -> None:
    database.run("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
    with database.transaction():
        for pair in new.items():
            database.run("INSERT INTO numbers VALUES (?, ?)", pair)
        database.run("PRAGMA defer_foreign_keys = ON")
        for table in ("trials", "runs", "metrics", "chunks", "checkpoints"):
            column = "id" if table == "trials" else "trial_id"
            # Negative numbers first, as a new number may be another's old one.
            steps = (
                # Names of tables and columns are constants of ours.
                f"UPDATE {table} SET {column} = -(SELECT new FROM numbers WHERE old = {column})",  # nosec B608
                f"UPDATE {table} SET {column} = -{column}",  # nosec B608
            )
            for step in steps:
                database.run(step)
        database.run("UPDATE runs SET log_dir = 'trials/' || trial_id || '/run-' || number")


def _rename(directory: Path, name: str, new: Mapping[int, int]) -> None:
    """Rename the directories of trials. Others with such a name, of no trial, are removed."""
    moving = directory / ".moving"
    moving.mkdir()
    moved = [number for number in new if (directory / name.format(number)).is_dir()]
    for number in moved:
        os.rename(directory / name.format(number), moving / str(number))
    for number in moved:
        place = directory / name.format(new[number])
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        os.rename(moving / str(number), place)
    moving.rmdir()
