"""A temporary SQLite database with the rows of Determined's tables, indexed by trial."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from det_core.errors import DetError

from .copies import Block, place_of
from .lines import Decoded, Row, read_bytea
from .values import LARGEST, read_object, read_position

SMALL: dict[str, tuple[str, ...]] = {
    "experiments": (
        *(
            "id",
            "state",
            "config",
            "start_time",
            "end_time",
            "archived",
            "parent_id",
            "owner_id",
            "progress",
        ),
        *(
            "git_remote",
            "git_commit",
            "git_committer",
            "git_commit_date",
            "original_config",
            "notes",
            "job_id",
        ),
        *("project_id", "best_trial_id", "unmanaged", "external_experiment_id"),
    ),
    "trials": (
        *(
            "id",
            "experiment_id",
            "state",
            "start_time",
            "end_time",
            "hparams",
            "warm_start_checkpoint_id",
            "seed",
        ),
        *(
            "request_id",
            "task_id",
            "run_id",
            "restarts",
            "tags",
            "external_trial_id",
            "log_policy_matched",
        ),
    ),
    "runs": (
        *(
            "id",
            "experiment_id",
            "state",
            "start_time",
            "end_time",
            "hparams",
            "warm_start_checkpoint_id",
            "seed",
        ),
        *(
            "request_id",
            "task_id",
            "restart_id",
            "restarts",
            "tags",
            "external_run_id",
            "archived",
            "local_id",
        ),
        *("log_policy_matched", "run_type", "run_type_fk"),
    ),
    "trials_v2": ("run_id", "request_id", "seed"),
    "runs_metadata": ("run_id", "metadata"),
    "tasks": ("task_id", "task_type", "start_time", "end_time"),
    "trial_id_task_id": ("trial_id", "task_id"),
    "run_id_task_id": ("run_id", "task_id"),
    "allocations": (
        *(
            "task_id",
            "allocation_id",
            "start_time",
            "end_time",
            "exit_reason",
            "exit_error",
            "status_code",
        ),
        *("slots", "resource_pool"),
    ),
    "run_checkpoints": ("run_id", "checkpoint_id"),
    "storage_backend": ("id", "shared_fs_id", "s3_id", "gcs_id", "azure_id", "directory_id"),
    "storage_backend_shared_fs": ("id", "host_path", "storage_path"),
    "storage_backend_s3": ("id", "bucket", "prefix"),
    "storage_backend_gcs": ("id", "bucket", "prefix"),
    "storage_backend_azure": ("id", "container"),
    "storage_backend_directory": ("id", "container_path"),
    "users": ("id", "username", "display_name"),
    "workspaces": ("id", "name"),
    "projects": ("id", "name", "description", "notes", "workspace_id"),
    "models": (
        "id",
        "name",
        "description",
        "metadata",
        "labels",
        "notes",
        "user_id",
        "archived",
        "creation_time",
    ),
    "model_versions": (
        *(
            "model_id",
            "model_name",
            "version",
            "checkpoint_uuid",
            "name",
            "comment",
            "notes",
            "labels",
            "metadata",
        ),
        *("user_id", "creation_time"),
    ),
    "trial_source_infos": (
        "trial_id",
        "checkpoint_uuid",
        "trial_source_info_type",
        "model_id",
        "model_version",
    ),
    "cluster_id": ("cluster_id",),
    "schema_migrations": ("version",),
    "gopg_migrations": ("id", "version"),
}
"""The tables that describe experiments, trials and users, with the columns that are read, of all
versions."""
LARGE: dict[str, tuple[str, ...]] = {
    "experiments": ("id", "model_definition"),
    **dict.fromkeys(
        ("steps", "validations", "raw_steps", "raw_validations", "generic_metrics"), ()
    ),
    **dict.fromkeys(
        ("checkpoints", "raw_checkpoints", "checkpoints_v2", "trial_logs", "task_logs"), ()
    ),
}
"""The tables with the results of trials, all columns, and the code of the experiments."""
_UNREADABLE = "determined_metadata_cannot_be_read"
"""The key that a checkpoint's metadata has instead of such that are no JSON or nested too deep."""
_KINDS = {
    "steps": "training",
    "validations": "validation",
    "raw_steps": "training",
    "raw_validations": "validation",
}

_TABLES = """
CREATE TABLE code (experiment INTEGER PRIMARY KEY, archive BLOB);
CREATE TABLE steps (trial INTEGER, step INTEGER, batches INTEGER);
CREATE TABLE metrics (
    trial INTEGER, archived INTEGER, kind TEXT, step INTEGER, batches INTEGER, attempt INTEGER,
    id INTEGER, state TEXT, time TEXT, data TEXT);
CREATE TABLE checkpoints (
    trial INTEGER, origin TEXT, id INTEGER, uuid TEXT, step INTEGER, batches INTEGER,
    attempt INTEGER, archived INTEGER, state TEXT, time TEXT, size INTEGER, resources TEXT,
    metadata TEXT, place TEXT);
CREATE TABLE logs (
    trial INTEGER, origin INTEGER, id INTEGER, allocation TEXT, rank INTEGER, time TEXT, line BLOB);
"""
_INDEXES = """
CREATE INDEX IF NOT EXISTS steps_in_order ON steps (trial, step, batches);
CREATE INDEX IF NOT EXISTS metrics_in_order
    ON metrics (trial, archived, kind, batches, step, attempt, id);
CREATE INDEX IF NOT EXISTS checkpoints_in_order ON checkpoints (trial, batches, step, time, id);
CREATE INDEX IF NOT EXISTS checkpoints_by_uuid ON checkpoints (uuid);
CREATE INDEX IF NOT EXISTS logs_in_order ON logs (trial, origin, id);
"""


class Scratch(AbstractContextManager["Scratch"]):
    """A temporary database that stores rows unchanged and finds them by trial.

    Its file lies in `directory`. It is deleted when it is closed or when the process ends.
    """

    def __init__(self, directory: Path) -> None:
        file, path = tempfile.mkstemp(prefix=".migrating-", dir=directory)
        os.close(file)
        self._directory = directory
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "cache_size = -16384",
            "temp_store = FILE",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(_TABLES)
        for table, columns in SMALL.items():
            self._connection.execute(f"CREATE TABLE of_{table} ({', '.join(columns)})")
        # The space is freed as soon as no process has the file open, however this process ends.
        os.unlink(path)
        self.tables: dict[str, tuple[str, ...]] = {}
        """The tables that were found, with their columns."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def rows(self, sql: str, parameters: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that a query finds."""
        return iter(self._connection.execute(sql, tuple(parameters)))

    def records(self, table: str) -> Iterator[dict[str, str | None]]:
        """Yield the rows of a small table, as dicts by column."""
        columns = SMALL[table]
        # Names of tables and columns are constants of ours; values are parameters.
        for row in self.rows(f"SELECT * FROM of_{table}"):  # nosec B608
            yield dict(zip(columns, row, strict=True))

    def load_small(self, block: Block) -> None:
        """Insert the rows of a table of `SMALL`."""
        self.tables[block.table] = block.columns
        places = [place_of(block.columns, name) for name in SMALL[block.table]]
        rows = ([None if at is None else _text(row[at]) for at in places] for row in block.rows)
        self._insert(f"of_{block.table}", len(places), rows)

    def load_large(
        self, block: Block, trials: Callable[[str, str], int | None], experiments: Collection[int]
    ) -> None:
        """Insert those rows of a table of `LARGE` that belong to chosen trials.

        `trials` returns the trial of a row, from "trial", "task" or "uuid" and the row's value for
        it. Rows for which it returns None are left out.
        """
        take = _Taking(block.columns, trials, experiments)
        table = block.table
        self.tables.setdefault(table, block.columns)
        if table == "experiments":
            for found in filter(None, map(take.code, block.rows)):
                self._insert_code(*found)
        elif table in ("trial_logs", "task_logs"):
            self._insert("logs", 7, filter(None, map(take.log_of(table), block.rows)))
        elif "checkpoints" in table:
            self._insert(
                "checkpoints", 14, filter(None, map(take.checkpoint_of(table), block.rows))
            )
        elif table == "steps" and "total_batches" not in block.columns:
            self._load_steps(take, block.rows)
        else:
            self._insert(
                "metrics", 10, filter(None, map(take.metrics_of(_KINDS.get(table)), block.rows))
            )

    def _insert_code(self, experiment: int, archive: bytes | Decoded) -> None:
        """Insert the code of an experiment, without another copy of it in memory."""
        with self._writing():
            self._connection.execute(
                "INSERT INTO code VALUES (?, zeroblob(?))", (experiment, len(archive))
            )
            with self._connection.blobopen("code", "archive", experiment) as blob:
                blob.write(archive)

    @contextmanager
    def code(self, experiment: int) -> Iterator[sqlite3.Blob | None]:
        """Open the archive with the code of an experiment. None where there is none."""
        if not [*self.rows("SELECT 1 FROM code WHERE experiment = ?", (experiment,))]:
            yield None
            return
        with self._connection.blobopen("code", "archive", experiment, readonly=True) as blob:
            yield blob

    def _load_steps(self, take: _Taking, rows: Iterable[Row]) -> None:
        """Insert the steps twice: as reports, and with their lengths, which give positions."""
        of_training = take.metrics_of("training")
        count = place_of(take.columns, "num_batches")

        def both() -> Iterator[tuple[Any, ...]]:
            for row in rows:
                if (found := of_training(row)) is not None:
                    batches = None if count is None else _text(row[count])
                    self._connection.execute(
                        "INSERT INTO steps VALUES (?, ?, ?)", (found[0], found[3], batches)
                    )
                    yield found

        self._insert("metrics", 10, both())

    def index(self) -> None:
        """Create the indexes by trial."""
        with self._writing():
            self._connection.executescript(_INDEXES)

    def _insert(self, table: str, count: int, rows: Iterable[Sequence[Any]]) -> None:
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"INSERT INTO {table} VALUES ({', '.join('?' * count)})"  # nosec B608
        with self._writing():
            self._connection.execute("BEGIN")
            self._connection.executemany(sql, rows)
            self._connection.execute("COMMIT")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise DetError(
                f"rows cannot be kept in {self._directory} ({error}); free some space"
            ) from error


class _Taking:
    """Converts rows of a large table to rows of the scratch database, by the columns' names."""

    def __init__(
        self,
        columns: tuple[str, ...],
        trials: Callable[[str, str], int | None],
        experiments: Collection[int],
    ) -> None:
        self.columns = columns
        self._trials = trials
        self._experiments = experiments
        self._place = {name: place for place, name in enumerate(columns)}

    def _get(self, row: Row, *names: str) -> str | None:
        """Return the value of the first of these columns that exists."""
        for name in names:
            if (place := self._place.get(name)) is not None:
                return _text(row[place])
        return None

    def code(self, row: Row) -> tuple[int, bytes | Decoded] | None:
        id, archive = int(self._get(row, "id") or 0), row[self._place["model_definition"]]
        data = read_bytea(archive) if archive and id in self._experiments else b""
        return (id, data) if data else None

    def _trial(self, row: Row, by: str, *names: str) -> int | None:
        value = self._get(row, *names)
        return None if value is None else self._trials(by, value)

    def metrics_of(self, kind: str | None) -> Callable[[Row], tuple[Any, ...] | None]:
        has_total = "total_batches" in self._place
        # The number of a step is its id. A validation refers to it by step_id.
        step = None if has_total else self._first("step_id", "id")
        total, attempt, archived = map(self._first, ("total_batches", "trial_run_id", "archived"))
        group, trial = self._first("metric_group", "custom_type"), self._place["trial_id"]
        rest = [self._first(name) for name in ("id", "state", "end_time", "metrics")]
        texts = _reader([step, total, attempt, *rest])
        seen: dict[bytes | None, int | None] = {None: None}

        def take(row: Row) -> tuple[Any, ...] | None:
            of = row[trial]
            if of not in seen:
                seen[of] = self._trials("trial", of.decode()) if of is not None else None
            if (found := seen[of]) is None:
                return None
            own = kind or (_text(row[group]) if group is not None else None) or "generic"
            is_archived = archived is not None and row[archived] == b"t"
            return (found, is_archived, own, *texts(row))

        return take

    def _first(self, *names: str) -> int | None:
        """Return the index of the first of these columns that exists."""
        return next((self._place[name] for name in names if name in self._place), None)

    def checkpoint_of(self, table: str) -> Callable[[Row], tuple[Any, ...] | None]:
        def take(row: Row) -> tuple[Any, ...] | None:
            uuid = self._get(row, "uuid")
            trial = self._trial(row, "trial", "trial_id")
            if trial is None and table == "checkpoints_v2":
                trial = self._trials("uuid", uuid or "") or self._trial(row, "task", "task_id")
            if trial is None:
                return None
            try:
                metadata = read_object(self._get(row, "metadata"))
            except (ValueError, RecursionError):
                metadata = {_UNREADABLE: True}
            batches = self._get(row, "total_batches") or read_position(
                metadata.get("steps_completed")
            )
            allocation = self._get(row, "allocation_id")
            attempt = self._get(row, "trial_run_id") or attempt_of(allocation)
            archived, time = (
                self._get(row, "archived") == "t",
                self._get(row, "report_time", "end_time"),
            )
            kept = {
                key: value
                for key, value in metadata.items()
                if key not in ("experiment_config", "hparams")
            }
            found = (
                trial,
                table,
                self._get(row, "id"),
                uuid,
                self._get(row, "step_id"),
                batches,
                attempt,
                archived,
            )
            size, resources = self._get(row, "size"), self._get(row, "resources")
            place = self._get(row, "storage_id")
            return (*found, self._get(row, "state"), time, size, resources, _json(kept), place)

        return take

    def log_of(self, table: str) -> Callable[[Row], tuple[Any, ...] | None]:
        origin = int(table == "task_logs")
        by, of = ("task", self._place["task_id"]) if origin else ("trial", self._place["trial_id"])
        log, message, id = self._first("log"), self._first("message"), self._first("id")
        rest = [self._first(name) for name in ("allocation_id", "rank_id", "timestamp")]
        texts = _reader([id, *rest])
        seen: dict[bytes | None, int | None] = {None: None}

        def take(row: Row) -> tuple[Any, ...] | None:
            value = row[of]
            if value not in seen:
                seen[value] = self._trials(by, value.decode()) if value is not None else None
            if (trial := seen[value]) is None:
                return None
            line = row[log] if log is not None else None
            if line is None and message is not None:
                line = row[message]
            return (trial, origin, *texts(row), b"" if line is None else read_bytea(line))

        return take


def attempt_of(allocation: str | None) -> int | None:
    """Return the number of an attempt, the end of an allocation's id. None where it has none."""
    end = (allocation or "").rpartition(".")[2]
    return int(end) if end.isdecimal() and end.isascii() and int(end) < LARGEST else None


def _reader(places: Sequence[int | None]) -> Callable[[Row], list[str | None]]:
    """Return a function that reads the texts at these places of a row.

    None where there is no such column.
    """

    def read(row: Row) -> list[str | None]:
        return [
            None if at is None or (field := row[at]) is None
            else field.decode("utf-8", "backslashreplace")
            for at in places
        ]  # fmt: skip

    return read


def _json(value: Mapping[str, Any]) -> str:
    from det_driver.store import dump

    return dump(value)


def _text(field: bytes | None) -> str | None:
    return None if field is None else field.decode(errors="backslashreplace")
