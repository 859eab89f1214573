"""The tables as a list of migrations, and the encoding of values in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

# Never edit a released step, as existing stores have applied it. Append another.
# An experiment's database does not hold its number, which is its directory's name.
# Metrics: `archived` is 0 for a row that counts, and otherwise the row's own id. So one unique
# index both allows only one live row per position and gives every query its order. `metric` is the
# searcher's metric of a validation. Chunks hold packed reports of the other groups. The chunks of
# one trial and group that count do not overlap, and all later rows are after them.
EXPERIMENT: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE experiment (
            only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL, description TEXT NOT NULL, labels TEXT NOT NULL,
            config TEXT NOT NULL, entrypoint TEXT NOT NULL, metric TEXT NOT NULL, smaller_is_better INTEGER NOT NULL,
            engine TEXT NOT NULL, state TEXT NOT NULL, archived INTEGER NOT NULL DEFAULT 0,
            progress REAL NOT NULL DEFAULT 0, created REAL NOT NULL, started REAL, ended REAL, reason TEXT,
            pid INTEGER, boot TEXT)""",
        (
            "CREATE TABLE blocks (seq INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT"
            " NULL)"
        ),
        """CREATE TABLE trials (
            id INTEGER PRIMARY KEY, request INTEGER NOT NULL UNIQUE, hparams TEXT NOT NULL, seed INTEGER NOT NULL,
            state TEXT NOT NULL, batches INTEGER NOT NULL DEFAULT 0, restarts INTEGER NOT NULL DEFAULT 0,
            runs INTEGER NOT NULL DEFAULT 0, progress REAL NOT NULL DEFAULT 0, best_metric REAL, best_batches INTEGER,
            latest_metric REAL, latest_checkpoint TEXT, source_checkpoint TEXT, started REAL, ended REAL,
            exit_reason TEXT)""",
        "CREATE INDEX trials_by_state ON trials (state)",
        "CREATE INDEX trials_by_metric ON trials (best_metric, id) WHERE best_metric IS NOT NULL",
        (
            "CREATE INDEX trials_by_source ON trials (source_checkpoint) WHERE source_checkpoint IS"
            " NOT NULL"
        ),
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
    # The storage of an imported checkpoint comes from another user's database.
    ("ALTER TABLE checkpoints ADD COLUMN imported INTEGER NOT NULL DEFAULT 0",),
    # Alerts that are not sent yet. `webhook` is a name, so that no address is here.
    (
        """CREATE TABLE alerts (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, webhook TEXT NOT NULL, kind TEXT NOT NULL,
            content TEXT NOT NULL, created REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL,
            dead INTEGER NOT NULL DEFAULT 0, error TEXT)""",
    ),
    # The recordings of scripts that this experiment has taken up, each up to event `seq`.
    (
        "CREATE TABLE sources (id TEXT PRIMARY KEY, seq INTEGER NOT NULL, digest TEXT NOT NULL, state TEXT NOT NULL)"
        " WITHOUT ROWID",
    ),
)

JOURNAL = 1
"""The version of the events in journals, stored in an experiment's row.

Raise it with any change in the meaning of events.
"""

OUTSIDE = "outside"
"""The engine of experiments whose scripts det did not start: they record themselves."""

NO_JOURNAL = 0
"""The version of an experiment that was trained elsewhere, whose search has no journal."""

# The index is a cache. It has no migrations: a version of det that expects another one rebuilds it.
INDEX: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
        "CREATE TABLE experiments (id INTEGER PRIMARY KEY, summary BLOB NOT NULL)",
        (
            "CREATE TABLE blocks (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, experiment_id"
            " INTEGER NOT NULL)"
        ),
        """CREATE TABLE leases (
            boot TEXT NOT NULL, device TEXT NOT NULL, experiment_id INTEGER NOT NULL, pid INTEGER NOT NULL,
            born TEXT NOT NULL, PRIMARY KEY (boot, device)) WITHOUT ROWID""",
        """CREATE TABLE waiting (
            id INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, experiment_id INTEGER NOT NULL,
            pid INTEGER NOT NULL, born TEXT NOT NULL, devices TEXT NOT NULL, asked REAL NOT NULL,
            UNIQUE (boot, experiment_id, pid, born))""",
    ),
    # This step is one, because the leases of drivers of an earlier version count. `run` is the first
    # device of a run, `since` the time of CLOCK_MONOTONIC at which it got its devices, `gained` what
    # its request had gained by waiting, and `recalled` the experiment for which it is asked to give
    # them back. `used` are an experiment's slot-seconds until `at`.
    (
        "ALTER TABLE leases ADD COLUMN run TEXT",
        "ALTER TABLE leases ADD COLUMN since REAL",
        "ALTER TABLE leases ADD COLUMN gained INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE leases ADD COLUMN recalled INTEGER",
        "ALTER TABLE waiting ADD COLUMN slots INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE waiting ADD COLUMN runs INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE waiting ADD COLUMN since REAL",
        "ALTER TABLE waiting ADD COLUMN preempts INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE waiting ADD COLUMN owed INTEGER NOT NULL DEFAULT 0",
        """CREATE TABLE shares (
            boot TEXT NOT NULL, experiment_id INTEGER NOT NULL, priority INTEGER, weight REAL,
            used REAL NOT NULL DEFAULT 0, at REAL NOT NULL DEFAULT 0,
            PRIMARY KEY (boot, experiment_id)) WITHOUT ROWID""",
    ),
    # `user` is whose experiment it is, empty where that is not known.
    ("ALTER TABLE shares ADD COLUMN user TEXT NOT NULL DEFAULT ''",),
    # `until` is when `used` counts nothing any more, in seconds since the epoch.
    ("ALTER TABLE shares ADD COLUMN until REAL NOT NULL DEFAULT 0",),
    # `machines` are how many of the devices are on each machine. `fence` is for how many seconds
    # runs may go on after their driver has died, and `ends` when they have ended, after its death.
    (
        "ALTER TABLE waiting ADD COLUMN machines TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE leases ADD COLUMN fence REAL NOT NULL DEFAULT 0",
        "ALTER TABLE leases ADD COLUMN ends REAL",
    ),
    # `called` is whether the request may get devices, or have runs to preempt, when it asks again.
    ("ALTER TABLE waiting ADD COLUMN called INTEGER NOT NULL DEFAULT 0",),
    # `got` is when other runs of the request got devices, at the start of its experiment's turn.
    ("ALTER TABLE waiting ADD COLUMN got REAL",),
)

# The registry is no cache: never edit a released step.
MODELS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE models (
            id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, description TEXT NOT NULL,
            notes TEXT NOT NULL, labels TEXT NOT NULL, metadata TEXT NOT NULL, archived INTEGER NOT NULL DEFAULT 0,
            last_version INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, updated REAL NOT NULL)""",
        """CREATE TABLE versions (
            id INTEGER PRIMARY KEY AUTOINCREMENT, model_id INTEGER NOT NULL REFERENCES models ON DELETE CASCADE,
            version INTEGER NOT NULL, uuid TEXT NOT NULL, name TEXT NOT NULL, notes TEXT NOT NULL,
            labels TEXT NOT NULL, metadata TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            UNIQUE (model_id, version), UNIQUE (model_id, uuid))""",
        "CREATE INDEX versions_of_checkpoint ON versions (uuid)",
        """CREATE TABLE aliases (
            model_id INTEGER NOT NULL, alias TEXT NOT NULL, version INTEGER NOT NULL,
            PRIMARY KEY (model_id, alias), FOREIGN KEY (model_id, version)
            REFERENCES versions (model_id, version) ON DELETE CASCADE) WITHOUT ROWID""",
    ),
)

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    msgspec.DecodeError,
)
"""The errors that arise from decoding values that det has not written.

RuntimeError arises if columns end too early or JSON is nested too deeply.
"""

# JSON as the store keeps it: compact, and with NaN and Infinity, which metrics may be.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def dump(value: Any) -> str:
    """Return JSON text, which every encoding of Unicode can hold.

    Numbers that are not finite are written as in Python, JavaScript and JSON5.
    """
    if type(value) not in (dict, list) and isinstance(value, Mapping):
        value = dict(value)
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return _without_surrogates(value)
    return (
        # msgspec is faster, but writes numbers that are not finite as null.
        _encode(value) if b"null" in text else text.decode()
    )


def _without_surrogates(value: Any) -> str:
    """Return JSON text with a backslash and digits for each half of a character."""
    return _SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):x}", _encode(value))


def load(text: str | bytes) -> Any:
    """Return the value of JSON text. The strict reader, ten times faster, is tried first.

    Half a character, which nothing can print, is replaced as `dump` does: det has written such
    text before, and a file of another user may hold it.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = json.loads(text)
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return json.loads(_without_surrogates(value)) if _ESCAPED_SURROGATE.search(text) else value


def convert(value: Any, kind: Any) -> Any:
    """Return a value as a type such as `tuple[int, str]`. Raises msgspec.ValidationError.

    msgspec inspects a type at each call, which takes thirty times as long as to convert a row. It
    remembers only what it found out about a struct.
    """
    return msgspec.convert((value,), _holder(kind).type).value


@cache
def _holder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of a struct with one value, which has inspected it.

    Two threads must not inspect a struct for the first time at once. No other thread has this one.
    """
    return msgspec.json.Decoder(msgspec.defstruct("Holder", [("value", kind)], array_like=True))


def load_object(text: str | bytes) -> dict[str, Any]:
    """Return the value of JSON text that describes an object.

    Raises ValueError for another value.
    """
    value = load(text)
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} instead of an object")
    return value


def assignments(changes: Mapping[str, Any], allowed: type) -> tuple[str, list[Any]]:
    """Return the text after SET and its parameters.

    The names come from a TypedDict, so that only known columns occur.
    """
    unknown = changes.keys() - allowed.__annotations__.keys()
    if unknown or not changes:
        raise TypeError(
            f"cannot change {sorted(unknown) or 'nothing'}; give some of"
            f" {sorted(allowed.__annotations__)}"
        )
    return ", ".join(f"{name} = ?" for name in changes), [
        storable(value) for value in changes.values()
    ]


def storable(value: Any) -> Any:
    """Return a value in a form that SQLite accepts."""
    # A traceback may quote a file name that is not UTF-8, which SQLite rejects.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
