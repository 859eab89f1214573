from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.store import Store
from det_driver.store._database import Database
from det_driver.store._schema import MIGRATIONS

NEXT = ("ALTER TABLE experiments ADD COLUMN owner TEXT NOT NULL DEFAULT 'me'", "CREATE TABLE notes (text TEXT)")


def version(home: Path) -> int:
    with closing(sqlite3.connect(home / "det.db")) as raw:
        return int(raw.execute("PRAGMA user_version").fetchone()[0])


def build_version_1(home: Path) -> None:
    database = Database(home / "det.db", migrations=MIGRATIONS[:1])
    database.run(
        "INSERT INTO experiments (name, description, labels, config, entrypoint, metric, smaller_is_better, state, "
        "created) VALUES ('old', '', '[\"a\"]', '{}', 'm:T', 'loss', 1, 'ACTIVE', 5.0)"
    )
    database.close()


def test_a_store_of_version_1_opens_with_all_it_held(tmp_path: Path) -> None:
    build_version_1(tmp_path)

    with Store(tmp_path) as store:
        (found,) = store.experiments.list()

    assert (found.id, found.name, found.labels, found.created) == (1, "old", ("a",), 5.0)
    assert version(tmp_path) == len(MIGRATIONS)


def test_steps_that_are_missing_are_taken_in_place(tmp_path: Path) -> None:
    build_version_1(tmp_path)

    for readonly in (True, False):
        database = Database(tmp_path / "det.db", readonly=readonly, migrations=(*MIGRATIONS, NEXT))
        assert database.rows("SELECT name, owner FROM experiments") == [("old", "me")]
        database.close()
    assert version(tmp_path) == len(MIGRATIONS) + 1


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    build_version_1(tmp_path)

    with pytest.raises(StoreError, match=r"no such table: nowhere$"):
        Database(tmp_path / "det.db", migrations=(*MIGRATIONS[:1], (*NEXT, "INSERT INTO nowhere VALUES (1)")))

    assert version(tmp_path) == 1
    with Store(tmp_path) as store:
        assert len(store.experiments.list()) == 1


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    Store(tmp_path).close()
    newer = len(MIGRATIONS) + 1
    with closing(sqlite3.connect(tmp_path / "det.db")) as raw:
        raw.execute(f"PRAGMA user_version = {newer}")

    for open in (Store, Store.reader):
        with pytest.raises(
            StoreError,
            match=rf"det.db has schema version {newer}, newer than the {newer - 1} that this det knows; upgrade det-core$",
        ):
            open(tmp_path)
    assert version(tmp_path) == newer


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

    assert sorted(process.communicate(timeout=60)[0] for process in processes) == ["1\n", "2\n", "3\n", "4\n"]
