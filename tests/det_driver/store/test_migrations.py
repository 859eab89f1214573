from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.store import Store, _databases
from det_driver.store._database import Database
from det_driver.store._schema import EXPERIMENT

NEXT = (
    "ALTER TABLE experiment ADD COLUMN owner TEXT NOT NULL DEFAULT 'me'",
    "CREATE TABLE notes (text TEXT)",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The database of experiment 1 of a home."""
    with Store(tmp_path) as store:
        store.experiments.create(name="old", config="{}")
    return tmp_path / "experiments" / "1" / "experiment.db"


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as raw:
        return int(raw.execute("PRAGMA user_version").fetchone()[0])


def test_opening_an_older_experiment_migrates_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_databases, "EXPERIMENT", (*EXPERIMENT, NEXT))

    with Store(tmp_path) as store, store.lock(1):
        assert store.experiments.get(1).name == "old"

    assert version(file) == len(EXPERIMENT) + 1


def test_steps_that_are_missing_are_taken_in_place(file: Path) -> None:
    for readonly in (True, False):
        database = Database(file, (*EXPERIMENT, NEXT), readonly=readonly)
        assert database.rows("SELECT name, owner FROM experiment") == [("old", "me")]
        database.close()
    assert version(file) == len(EXPERIMENT) + 1


def test_a_step_that_fails_changes_nothing(file: Path) -> None:
    with pytest.raises(StoreError, match=r"no such table: nowhere$"):
        Database(file, (*EXPERIMENT, (*NEXT, "INSERT INTO nowhere VALUES (1)")))

    assert version(file) == len(EXPERIMENT)


def test_newer_schema_is_refused_and_others_are_still_listed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newer database is not changed."""
    newer = len(EXPERIMENT) + 1
    with closing(sqlite3.connect(file)) as raw:
        raw.execute(f"PRAGMA user_version = {newer}")
    sentence = (
        rf"experiments/1/experiment.db has schema version {newer}, newer than the {newer - 1} that"
        r" this det knows; "
        "upgrade det-driver"
    )
    with Store(tmp_path) as store:
        store.experiments.create(name="mine", config="{}")
        for _ in range(2):
            with pytest.raises(StoreError, match=f"{sentence}$"):
                store.experiments.get(1)
        with pytest.raises(StoreError, match=f"{sentence}$"), store.lock(1):
            pass
        store.index.repair()
        assert [each.experiment.name for each in store.experiments.list()] == ["mine"]
    assert capsys.readouterr().err.startswith("det: experiment 1 is left out: ")
    assert version(file) == newer


def test_the_home_of_an_earlier_det_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "det.db").write_bytes(b"SQLite format 3")

    for open in (Store, Store.reader):
        with pytest.raises(
            StoreError,
            match=(
                rf"^{tmp_path}/det.db is the store of an earlier det, which this one does not read;"
                r" choose another home "
                r"\(DET_HOME\), or move that file away to begin again$"
            ),
        ):
            open(tmp_path)
    assert (tmp_path / "det.db").read_bytes() == b"SQLite format 3"


@pytest.mark.process
def test_processes_that_make_the_store_at_once_do_not_collide(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
import sys
from pathlib import Path
from det_driver.store import Store
sys.stdin.readline()
with Store(Path(sys.argv[1])) as store:
    print(store.experiments.create(name="x", config="{}").id)
"""
    processes = [start(script, tmp_path / "home") for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    assert sorted(process.communicate(timeout=60)[0] for process in processes) == [
        "1\n",
        "2\n",
        "3\n",
        "4\n",
    ]
