"""The tables, as the list of steps that lead from an empty file to the newest version, and how values are written in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

# A step, once released, is never edited: stores out there have already taken it. Append another.
# Nothing in an experiment's database says its number, which is its directory's name.
# Metrics: `archived` is 0 for a row that counts and the row's own id otherwise, so that one unique index both holds
# "one live row per position" and gives every query its order. `metric` is the searcher's metric, for validations. Chunks hold
# reports of the other groups, packed; those of one trial and group that count do not overlap, nor with the rows behind them.
EXPERIMENT: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE experiment (
            only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL, description TEXT NOT NULL, labels TEXT NOT NULL,
            config TEXT NOT NULL, entrypoint TEXT NOT NULL, metric TEXT NOT NULL, smaller_is_better INTEGER NOT NULL,
            engine TEXT NOT NULL, state TEXT NOT NULL, archived INTEGER NOT NULL DEFAULT 0,
            progress REAL NOT NULL DEFAULT 0, created REAL NOT NULL, started REAL, ended REAL, reason TEXT,
            pid INTEGER, boot TEXT)""",
        "CREATE TABLE blocks (seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL)",
        """CREATE TABLE trials (
            id INTEGER PRIMARY KEY, request INTEGER NOT NULL UNIQUE, hparams TEXT NOT NULL, seed INTEGER NOT NULL,
            state TEXT NOT NULL, batches INTEGER NOT NULL DEFAULT 0, restarts INTEGER NOT NULL DEFAULT 0,
            runs INTEGER NOT NULL DEFAULT 0, progress REAL NOT NULL DEFAULT 0, best_metric REAL, best_batches INTEGER,
            latest_metric REAL, latest_checkpoint TEXT, source_checkpoint TEXT, started REAL, ended REAL,
            exit_reason TEXT)""",
        "CREATE INDEX trials_by_state ON trials (state)",
        "CREATE INDEX trials_by_metric ON trials (best_metric, id) WHERE best_metric IS NOT NULL",
        "CREATE INDEX trials_by_source ON trials (source_checkpoint) WHERE source_checkpoint IS NOT NULL",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT, trial_id INTEGER NOT NULL REFERENCES trials ON DELETE CASCADE,
            number INTEGER NOT NULL, first_batch INTEGER NOT NULL, log_dir TEXT NOT NULL,
            started REAL NOT NULL, ended REAL, outcome TEXT, backend TEXT, UNIQUE (trial_id, number))""",
        """CREATE TABLE metrics (
            id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL REFERENCES trials ON DELETE CASCADE,
            run_id INTEGER NOT NULL, kind TEXT NOT NULL, batches INTEGER NOT NULL, time REAL NOT NULL,
            data TEXT NOT NULL, metric REAL, archived INTEGER NOT NULL DEFAULT 0)""",
        "CREATE UNIQUE INDEX metrics_in_order ON metrics (trial_id, batches, kind, archived)",
        """CREATE TABLE checkpoints (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE,
            trial_id INTEGER NOT NULL REFERENCES trials ON DELETE CASCADE, run_id INTEGER NOT NULL,
            batches INTEGER NOT NULL, state TEXT NOT NULL, storage TEXT NOT NULL, size INTEGER NOT NULL,
            metadata TEXT NOT NULL, created REAL NOT NULL, framework TEXT NOT NULL)""",
        "CREATE INDEX checkpoints_in_order ON checkpoints (trial_id, seq)",
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL)",
        "CREATE TABLE taken (name TEXT PRIMARY KEY) WITHOUT ROWID",
    ),
    ("ALTER TABLE runs ADD COLUMN heard TEXT NOT NULL DEFAULT '{}'",),
    (
        "ALTER TABLE experiment ADD COLUMN journal INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE experiment ADD COLUMN det TEXT",
        """CREATE TABLE snapshots (
            seq INTEGER PRIMARY KEY, det TEXT NOT NULL, format INTEGER NOT NULL, version INTEGER NOT NULL,
            state BLOB NOT NULL)""",
        "CREATE INDEX runs_open ON runs (trial_id) WHERE ended IS NULL",
    ),
    (
        """CREATE TABLE chunks (
            id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL REFERENCES trials ON DELETE CASCADE, kind TEXT NOT NULL,
            first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL, data BLOB NOT NULL,
            archived INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX chunks_in_order ON chunks (trial_id, kind, archived, last)",
    ),
    ("ALTER TABLE runs ADD COLUMN reason TEXT",),
    ("ALTER TABLE runs ADD COLUMN host TEXT",),
    (
        "CREATE TABLE origins (digest TEXT PRIMARY KEY, facts TEXT NOT NULL) WITHOUT ROWID",
        "ALTER TABLE runs ADD COLUMN origin TEXT",
    ),
)

JOURNAL = 1
"""The version of the events in journals, which an experiment's row has: to be raised with any change of their meaning."""

# The index is a cache: it has no steps, but is made again where a version of det expects another one.
INDEX: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
        "CREATE TABLE experiments (id INTEGER PRIMARY KEY, summary BLOB NOT NULL)",
        "CREATE TABLE blocks (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, experiment_id INTEGER NOT NULL)",
        """CREATE TABLE leases (
            boot TEXT NOT NULL, device TEXT NOT NULL, experiment_id INTEGER NOT NULL, pid INTEGER NOT NULL,
            born TEXT NOT NULL, PRIMARY KEY (boot, device)) WITHOUT ROWID""",
        """CREATE TABLE waiting (
            id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, experiment_id INTEGER NOT NULL,
            pid INTEGER NOT NULL, born TEXT NOT NULL, devices TEXT NOT NULL, asked REAL NOT NULL,
            UNIQUE (boot, experiment_id, pid, born))""",
    ),
)

# JSON as the store keeps it: compact, and with NaN and Infinity, which metrics may be.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def dump(value: Any) -> str:
    """JSON text; numbers that are not finite are written as Python, JavaScript and JSON5 write them."""
    if type(value) is not dict and isinstance(value, Mapping):
        value = dict(value)
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return _encode(value)
    return (
        _encode(value) if b"null" in text else text.decode()
    )  # it writes them as null; else it is the same, and faster


def load(text: str | bytes) -> Any:
    """The value of JSON text: the strict and ten times faster reader first."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def assignments(changes: Mapping[str, Any], allowed: type) -> tuple[str, list[Any]]:
    """The text after SET and its parameters; the names come from a TypedDict, so that none is made up."""
    unknown = changes.keys() - allowed.__annotations__.keys()
    if unknown or not changes:
        raise TypeError(f"cannot change {sorted(unknown) or 'nothing'}; give some of {sorted(allowed.__annotations__)}")
    return ", ".join(f"{name} = ?" for name in changes), [storable(value) for value in changes.values()]


def storable(value: Any) -> Any:
    """A value as SQLite takes it."""
    # A traceback may quote a file name that is no UTF-8, and SQLite would refuse it.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
