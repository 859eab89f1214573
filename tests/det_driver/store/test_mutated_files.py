"""Stores whose bytes somebody has changed.

Each reading is good, or a sentence, and does nothing else.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import mutate_one, mutations, reads_safely
from tests.support.exports import repack

from det_core.config import Extensions, to_json
from det_core.errors import ConfigError, DetError, StoreError
from det_driver.config import load
from det_driver.store import Snapshot, Store, export_experiment, import_experiment
from det_driver.store._schema import EXPERIMENT

CONFIG = """
name: good
environment: {environment_variables: [HF_TOKEN=hush]}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""
TABLES = {
    "experiment": ("config", "labels", "state"),
    "trials": ("hparams", "state"),
    "runs": ("log_dir",),
    "metrics": ("data",),
    "chunks": ("data",),
    "checkpoints": ("uuid", "storage", "metadata"),
    "journal": ("event",),
    "snapshots": ("state",),
}
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one experiment that has something in every table."""
    home = tmp_path_factory.mktemp("good") / "home"
    config = load(CONFIG, extensions=Extensions(open=True), complete=False).config
    with Store(home) as store:
        id = store.experiments.create(
            name="good", config=to_json(config), metric="loss", labels=["a"]
        ).id
        with store.lock(id):
            trial = store.trials.create(id, 0, {"lr": 0.1}, seed=1)
            run = store.runs.begin(trial.id)
            for batches in range(300):
                store.metrics.report(
                    trial.id, run.id, "training", batches, {"loss": batches / 3, "text": "x"}
                )
            store.metrics.report(trial.id, run.id, "validation", 300, {"loss": 0.5})
            store.metrics.pack(trial.id)
            store.runs.record_origin(run.id, {"python": "3.12"})
            place = (home / "checkpoints/one").as_uri()
            store.checkpoints.record(
                "one", trial.id, run.id, 10, storage=place, size=3, metadata={"a": 1}
            )
            store.journal.append(id, '{"type": "started"}')
            store.snapshots.keep(id, Snapshot(1, "0.1.0", 1, 1, b"{}"))
    assert read_all(home) == []
    return home


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def read_all(home: Path) -> list[DetError]:
    """Read everything there is, as commands and the page do; return what could not be read."""
    errors: list[DetError] = []
    with Store.reader(home) as store:
        readings: list[Callable[[], Any]] = [
            lambda: store.experiments.list(archived=None, unread={}),
            lambda: store.experiments.summary(1),
            lambda: store.experiments.config(1),
            lambda: store.trials.list(1, best_first=True),
            lambda: store.trials.changed(1),
            lambda: store.trials.measured(1),
            lambda: store.trials.best(1),
            lambda: store.trials.unmeasured(1, 5),
            lambda: store.trials.first_failures(1),
            lambda: store.trials.invalid_in_a_row(1),
            lambda: store.runs.open(1),
            lambda: store.checkpoints.imported(1),
            lambda: store.checkpoints.elsewhere(1),
            lambda: store.checkpoints.get("one"),
            lambda: [store.runs.list(trial.id) for trial in store.trials.list(1)],
            lambda: store.runs.origins(1),
            lambda: store.metrics.groups(1),
            lambda: [*store.metrics.read(experiment_id=1)],
            lambda: store.metrics.series(1, "training", "loss"),
            lambda: store.checkpoints.list(experiment_id=1),
            lambda: [*store.journal.read(1)],
            lambda: store.snapshots.read(1),
        ]
        for reading in readings:
            try:
                reading()
            except DetError as error:
                errors.append(error)
    return errors


def fresh(good: Path, scratch: Path) -> Path:
    shutil.rmtree(scratch / "home", ignore_errors=True)
    return Path(shutil.copytree(good, scratch / "home"))


@few
@given(mutate=mutations())
def test_summaries_of_other_bytes_are_left_out_of_the_index(
    good: Path, scratch: Path, mutate: Callable[[bytes], bytes]
) -> None:
    home = fresh(good, scratch)
    with closing(sqlite3.connect(home / "index.db")) as database:
        ((summary,),) = database.execute("SELECT summary FROM experiments").fetchall()
        database.execute("UPDATE experiments SET summary = ?", (mutate(summary),))
        database.commit()
    assert reads_safely(lambda: read_all(home), scratch, ())


@few
@given(mutate=mutations())
def test_databases_of_other_bytes_are_read_or_refused(
    good: Path, scratch: Path, mutate: Callable[[bytes], bytes]
) -> None:
    home = fresh(good, scratch)
    mutate_one([home / "experiments/1/experiment.db"], 0, mutate)
    assert reads_safely(lambda: read_all(home), scratch, ())


def test_a_schema_that_is_no_text_is_a_damaged_file(good: Path, scratch: Path) -> None:
    """SQLite quotes it in its message, which Python then cannot decode."""
    home = fresh(good, scratch)
    file = home / "experiments/1/experiment.db"
    data = file.read_bytes()
    assert b"CREATE TABLE trials (" in data
    file.write_bytes(data.replace(b"CREATE TABLE trials (", b"CREATE TABLE trials \xe5"))
    with (
        Store.reader(home) as store,
        pytest.raises(DetError, match=r"experiment\.db is damaged \(.*restore it from a copy"),
    ):
        store.experiments.config(1)
    assert reads_safely(lambda: read_all(home), scratch, ())


def put_other_bytes(
    file: Path, table: str, column: str, mutate: Callable[[bytes], bytes], *, as_text: bool
) -> None:
    """Mutate a value of the first row of a table."""
    with closing(sqlite3.connect(file)) as database:
        found = database.execute(
            f"SELECT rowid, CAST({column} AS BLOB) FROM {table} LIMIT 1"
        ).fetchall()
        ((row, value),) = found
        kind = "TEXT" if as_text else "BLOB"
        database.execute(
            f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE rowid = ?", (mutate(value), row)
        )
        database.commit()


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table in TABLES for column in TABLES[table]]
)
@settings(few, max_examples=10)
@given(mutate=mutations(), as_text=st.booleans())
def test_values_of_other_bytes_are_read_or_refused(
    good: Path,
    scratch: Path,
    table: str,
    column: str,
    mutate: Callable[[bytes], bytes],
    as_text: bool,
) -> None:
    """A page of SQLite may be whole and its content wrong: any column takes any type."""
    home = fresh(good, scratch)
    put_other_bytes(home / "experiments/1/experiment.db", table, column, mutate, as_text=as_text)
    (home / "index.db").unlink()
    assert reads_safely(lambda: read_all(home), scratch, ())


@pytest.fixture(scope="module")
def exported(good: Path, scratch: Path) -> Path:
    """An export of the experiment of the good home, with its checkpoint."""
    home = fresh(good, scratch)
    saved = home / "checkpoints" / "one"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text('{"uuid": "one"}')
    (home / "experiments" / "1" / "code").mkdir()
    (home / "experiments" / "1" / "code" / "model.py").write_text("x = 1\n")
    file = scratch / "good.tar"
    with Store(home) as store:
        assert export_experiment(store, 1, file) == 1
    return file


def imports_safely(file: Path, scratch: Path) -> None:
    """Import a file that may be anything: all of it, or nothing with one sentence."""
    home = scratch / "importing"
    shutil.rmtree(home, ignore_errors=True)
    with Store(home) as store:
        good = reads_safely(lambda: import_experiment(store, file), scratch, StoreError)
        assert len(list((home / "experiments").iterdir())) == good
        if good:
            # What was taken is read like any other.
            with closing(sqlite3.connect(home / "experiments/1/experiment.db")) as database:
                assert database.execute("PRAGMA foreign_key_check").fetchall() == []


@few
@given(mutate=mutations())
def test_exports_of_other_bytes_are_imported_or_refused(
    exported: Path, scratch: Path, mutate: Callable[[bytes], bytes]
) -> None:
    file = scratch / "mutated.tar"
    file.write_bytes(mutate(exported.read_bytes()))
    imports_safely(file, scratch)


FIELDS = [(0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (345, 155)]
"""Where a header has the name, the mode, the size, the time, the kind, the link, and the prefix."""
NUMBERS = [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", b"\x80\0\0\0\x7f" + b"\xff" * 7]


@few
@given(
    which=st.integers(0, 1000),
    field=st.sampled_from(FIELDS),
    kind=st.sampled_from([None, *b"0123456xgLKSV"]),
    value=st.one_of(st.sampled_from(NUMBERS), st.binary(min_size=1, max_size=12)),
)
def test_exports_with_other_headers_are_imported_or_refused(
    exported: Path,
    scratch: Path,
    which: int,
    field: tuple[int, int],
    kind: int | None,
    value: bytes,
) -> None:
    """The checksum is right, as somebody would make it."""
    data = bytearray(exported.read_bytes())
    heads = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    at, (begin, size) = heads[which % len(heads)], field
    data[at + begin : at + begin + min(size, len(value))] = value[:size]
    if kind is not None:
        data[at + 156] = kind
    head = data[at : at + 148] + b" " * 8 + data[at + 156 : at + 512]
    data[at + 148 : at + 156] = b"%06o\0 " % sum(head)
    file = scratch / "mutated.tar"
    file.write_bytes(data)
    imports_safely(file, scratch)


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table in TABLES for column in TABLES[table]]
)
@settings(few, max_examples=5)
@given(mutate=mutations(), as_text=st.booleans())
def test_exports_with_other_values_are_imported_or_refused(
    exported: Path,
    scratch: Path,
    table: str,
    column: str,
    mutate: Callable[[bytes], bytes],
    as_text: bool,
) -> None:
    file = scratch / "mutated.tar"
    shutil.copy(exported, file)

    def change(inside: Path) -> None:
        database = inside / "experiment" / "experiment.db"
        put_other_bytes(database, table, column, mutate, as_text=as_text)

    repack(file, change)
    imports_safely(file, scratch)


def columns() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as known:
        for statement in (each for step in EXPERIMENT for each in step):
            known.execute(statement)
        tables = [
            name for (name,) in known.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return [
            (table, row[1])
            for table in tables
            for row in known.execute(f"PRAGMA table_info({table})")
        ]


@settings(few, max_examples=30)
@given(
    place=st.sampled_from(columns()),
    value=st.sampled_from([None, "text", "9" * 400, b"\xff\x00", 1.5, -1, 10**18]),
)
def test_values_of_other_types_in_any_column_are_read_or_refused(
    good: Path, scratch: Path, place: tuple[str, str], value: Any
) -> None:
    """SQLite takes any type in any column, and a file may say that it may be empty."""
    (table, column), home = place, fresh(good, scratch)
    file = home / "experiments/1/experiment.db"
    with closing(sqlite3.connect(file)) as database, suppress(sqlite3.IntegrityError):
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("PRAGMA writable_schema = ON")
        database.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = ?", (table,)
        )
        database.commit()
    with closing(sqlite3.connect(file)) as database, suppress(sqlite3.IntegrityError):
        database.execute(f"UPDATE {table} SET {column} = ?", (value,))
        database.commit()
    (home / "index.db").unlink()
    errors: list[DetError] = []
    assert reads_safely(lambda: errors.extend(read_all(home)), scratch, ())
    assert [
        str(error)
        for error in errors
        if "experiment.db" not in str(error) and not str(error).startswith("no ")
        # A configuration of another type is a sentence about the configuration.
        if not (place == ("experiment", "config") and isinstance(error, ConfigError))
    ] == []
