"""Checks of an imported experiment: its database and its files come from an untrusted source."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any

from det_core.config import from_json
from det_core.errors import DetError, StorageError
from det_core.storage import MANIFEST, checked_uuid, is_manifest_of
from det_driver.store._chunks import unpack
from det_driver.store._databases import FILE
from det_driver.store._records import CheckpointState, ExperimentState, TrialState
from det_driver.store._schema import EXPERIMENT, UNREADABLE, load
from det_driver.store._sources import state_of

_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (float, int),
    "TEXT": (str,),
    "BLOB": (bytes,),
}
_TIMES = frozenset(("created", "started", "ended", "time", "due"))
_LATEST, _MOST = 1e11, 10**18
_KEPT = (
    *(FILE, "code", "trials", "tensorboard", "environment", "driver.log"),
    *("provenance.json", "outside.json", "determined.json", "elsewhere.json"),
)
"""The entries of an experiment's directory that an import keeps.

The rest is left out, as the driver of a home acts on it: notes of agents, commands, checkpoints to
record.
"""
_OF_RUNS = re.compile(r"[0-9]+/run-[0-9]+/(rank-[0-9]{1,9}\.(log|times)|exit-status)")
"""The files of runs. The others name processes, or were of use to those."""
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""Finds the character 0 in JSON text."""
Row = dict[str, Any]


def check_import(scratch: Path) -> None:
    """Raise ValueError if an unpacked export could do harm here.

    This removes the files that are of use to the old home alone.
    """
    experiment, checkpoints = scratch / "experiment", scratch / "checkpoints"
    for path in (scratch, *scratch.rglob("*")):
        if path.is_symlink():
            # Relative links resolve to another target once the directories have moved.
            inside = Path(os.path.realpath(path)).is_relative_to(experiment.resolve())
            if not inside or not path.is_relative_to(experiment) or path == experiment:
                raise ValueError(
                    f"{path.relative_to(scratch)} is a link that leads out of the experiment"
                )
    for path in [*experiment.iterdir()]:
        if path.is_symlink() or path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    trials = experiment / "trials"
    for path in [*trials.rglob("*")]:
        name = path.relative_to(trials).as_posix()
        if path.is_symlink() or (path.is_file() and not _OF_RUNS.fullmatch(name)):
            path.unlink()
    for saved in checkpoints.iterdir() if checkpoints.is_dir() else ():
        _check_uuid(saved.name)
        manifest = saved / MANIFEST
        if not manifest.is_file() or not is_manifest_of(saved.name, manifest.read_bytes()):
            raise ValueError(f"checkpoints/{saved.name} has no {MANIFEST} of that uuid")
    try:
        check_database(experiment / FILE)
    except (sqlite3.Error, DetError) as error:
        raise ValueError(f"its {FILE} is damaged: {error}") from error


def check_database(file: Path) -> None:
    """Raise ValueError for tables, triggers, views or rows that det does not write."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if not 0 < version <= len(EXPERIMENT):
            raise ValueError(
                f"its {FILE} has schema version {version}, and this det knows {len(EXPERIMENT)}"
            )
        with closing(sqlite3.connect(":memory:")) as known:
            for step in EXPERIMENT[:version]:
                for statement in step:
                    known.execute(statement)
            if _schema(database) != _schema(known):
                raise ValueError(f"its {FILE} has other tables than an experiment's")
            tables = {
                name: known.execute(f"PRAGMA table_info({name})").fetchall()
                for name in _tables(known)
            }
        if database.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise ValueError(f"its {FILE} is damaged")
        for table, number, *_ in database.execute("PRAGMA foreign_key_check"):
            raise ValueError(f"row {number} of {table} is of a trial that is not there")
        for table, number in database.execute("SELECT name, seq FROM sqlite_sequence"):
            if type(number) is not int or not 0 <= number < _MOST:
                raise ValueError(f"the last number of {table} is {number}")
        count = 0
        for table, columns in tables.items():
            names = [column[1] for column in columns]
            # The names come from det's own schema, which equals that of the file.
            rows = database.execute(f"SELECT {', '.join(names)} FROM {table}")  # nosec B608
            for number, values in enumerate(rows, 1):
                _check_types(table, number, columns, values)
                try:
                    _CHECKS.get(table, _check_nothing)(dict(zip(names, values, strict=True)))
                except (*UNREADABLE, DetError) as error:
                    raise ValueError(f"row {number} of {table}: {error}") from error
                count += table == "experiment"
        if count != 1:
            raise ValueError(f"it holds {count} experiments")


def _schema(database: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return set(
        database.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        )
    )


def _tables(database: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in database.execute(sql)]


def _check_types(
    table: str, number: int, columns: list[tuple[Any, ...]], values: tuple[Any, ...]
) -> None:
    for (_, name, declared, needed, *_), value in zip(columns, values, strict=True):
        if value is None and not needed:
            continue
        if type(value) not in _TYPES[declared]:
            raise ValueError(f"row {number} of {table}: {name} is {type(value).__name__}")
        if type(value) is int and not -_MOST < value < _MOST:
            raise ValueError(f"row {number} of {table}: {name} is {value}")
        if name in _TIMES and type(value) is not str and not -_LATEST < value < _LATEST:
            raise ValueError(f"row {number} of {table}: {name} is {value}")


def _check_nothing(row: Row) -> None:
    pass


def _check_experiment(row: Row) -> None:
    _one_of(ExperimentState, row["state"])
    labels = load(row["labels"])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels are {row['labels']}")
    from_json(row["config"])
    if _NUL.search(row["config"]):
        raise ValueError("its configuration has a character that no path or variable may have")


def _check_trial(row: Row) -> None:
    if row["id"] <= 0:
        raise ValueError(f"its number is {row['id']}")
    _one_of(TrialState, row["state"])
    _is_map(row["hparams"])
    for uuid in (row["latest_checkpoint"], row["source_checkpoint"]):
        if uuid is not None:
            _check_uuid(uuid)


def _check_run(row: Row) -> None:
    if row["log_dir"] != f"trials/{row['trial_id']}/run-{row['number']}":
        raise ValueError(f"log_dir is {row['log_dir']!r}")


def _check_checkpoint(row: Row) -> None:
    _check_uuid(row["uuid"])
    _one_of(CheckpointState, row["state"])
    _is_map(row["metadata"])


def _check_block(row: Row) -> None:
    if not 0 < row["first"] <= row["last"]:
        raise ValueError(f"it reaches from {row['first']} to {row['last']}")


def _check_chunk(row: Row) -> None:
    for _ in unpack(row["data"]):
        pass


def _check_uuid(uuid: str) -> None:
    try:
        checked_uuid(uuid)
    except StorageError:
        raise ValueError(f"{uuid!r:.80} is no uuid of a checkpoint") from None


def _one_of(states: type[StrEnum], value: str) -> None:
    states(value)


def _is_map(text: str) -> None:
    if not isinstance(load(text), dict):
        raise ValueError(f"{text[:40]} is no map")


_CHECKS: dict[str, Callable[[Row], object]] = {
    "experiment": _check_experiment,
    "trials": _check_trial,
    "runs": _check_run,
    "checkpoints": _check_checkpoint,
    "blocks": _check_block,
    "metrics": lambda row: _is_map(row["data"]),
    "chunks": _check_chunk,
    "sources": lambda row: state_of(row["state"]),
    "journal": lambda row: json.loads(row["event"]) and None,
}
