"""The model registry: what it accepts and refuses, and that it survives damage and crowds."""

from __future__ import annotations

import random
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, ModelVersionRow, Run, Store, TrialRow, _models


@pytest.fixture
def uuids(store: Store, trial: TrialRow, run: Run) -> list[str]:
    """Three checkpoints, of which the last is deleted."""
    names = ["aa-1", "bb-2", "cc-3"]
    for batches, uuid in enumerate(names, 1):
        store.checkpoints.record(uuid, trial.id, run.id, batches, storage="{}", size=1)
    store.checkpoints.mark_deleted("cc-3")
    return names


def add(store: Store, uuid: str, *aliases: str) -> ModelVersionRow:
    return store.models.add_version("digits", uuid, aliases=aliases)


def test_model_keeps_what_is_known_of_it(store: Store) -> None:
    assert store.models.list() == []
    assert not store.models.path.exists()
    made = store.models.create(
        "digits", description="reads", notes="a\nb", labels=["x", "x", "y"], metadata={"f1": 0.5}
    )
    assert (made.description, made.notes, made.labels) == ("reads", "a\nb", ("x", "y"))
    assert (made.metadata, made.versions, made.latest, made.aliases) == ({"f1": 0.5}, 0, None, {})
    store.models.create("another")
    store.models.update("digits", name="numbers", archived=True, labels=[])
    assert [row.name for row in store.models.list()] == ["another"]
    [hidden] = store.models.list(archived=True)
    assert (hidden.id, hidden.name, hidden.labels, hidden.notes) == (1, "numbers", (), "a\nb")
    assert hidden.updated > made.updated
    with Store.reader(store.home) as reader:
        assert reader.models.list(archived=None) == store.models.list(archived=None)
        with pytest.raises(StoreError, match="opened for reading only"):
            reader.models.delete("another")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        (" \t", "is empty"),
        (" a", "begins or ends with a space"),
        ("a\x1b[31m", "contains a character that cannot be printed"),
        ("a\nb", "contains a character that cannot be printed"),
        ("\udce9", "contains a character that cannot be printed"),
        ("a/b", "contains '/', which references need"),
        ("a@b", "contains '@', which references need"),
        ("model:a", "contains ':', which references need"),
        ("12", "consists of digits, like a number"),
        ("١٢", "consists of digits, like a number"),
        ("n" * 129, "has 129 characters, more than 128"),
    ],
)
def test_name_that_breaks_references_is_refused(store: Store, name: str, reason: str) -> None:
    with pytest.raises(StoreError) as refused:
        store.models.create(name)
    assert str(refused.value).startswith("the model ")
    assert str(refused.value).endswith(f"{reason}; choose another one")
    assert str(refused.value).isprintable()
    store.models.create("digits")
    with pytest.raises(StoreError, match=r"choose another one$"):
        store.models.update("digits", name=name)
    with pytest.raises(StoreError, match=r"^the alias "):
        store.models.set_alias("digits", name, 1)
    assert [row.name for row in store.models.list()] == ["digits"]


def test_taken_name_is_refused_and_nothing_changes(store: Store) -> None:
    store.models.create("digits", notes="mine")
    for act in (
        lambda: store.models.create("digits", notes="another's"),
        lambda: (store.models.create("x"), store.models.update("x", name="digits", notes="z")),
    ):
        with pytest.raises(StoreError, match="there is a model 'digits' already"):
            act()
    assert [(row.name, row.notes) for row in store.models.list()] == [("digits", "mine"), ("x", "")]
    with pytest.raises(StoreError, match=r"the label 'a.x00b' contains a character"):
        store.models.create("y", labels=["a\0b"])
    with pytest.raises(StoreError, match=r"no model 'digit'; did you mean 'digits'\?"):
        store.models.get("digit")
    assert [row.name for row in store.models.list()] == ["digits", "x"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"notes": 7}, "^7 is no text"),
        ({"labels": [b"a"]}, "^b'a' is no text"),
        ({"metadata": {"a": object()}}, "metadata cannot be written as JSON"),
    ],
)
def test_value_that_could_not_be_read_is_refused(
    store: Store, wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StoreError, match=reason):
        store.models.create("digits", **wrong)
    assert store.models.list() == []


def test_versions_count_and_aliases_move(store: Store, uuids: list[str]) -> None:
    store.models.create("digits")
    with pytest.raises(StoreError, match="has no version yet; add one"):
        store.models.refer("digits")
    first = add(store, "aa", "production", "stable")
    assert (first.version, first.uuid, first.model) == (1, "aa-1", "digits")
    second = add(store, "bb-2", "production")
    assert (second.version, second.aliases) == (2, ("production",))
    assert store.models.get("digits").aliases == {"production": 2, "stable": 1}
    for reference, version in {
        "digits": 2,
        "model:digits": 2,
        "digits@latest": 2,
        "model:digits@stable": 1,
        "digits/1": 1,
        "model:digits/latest": 2,
    }.items():
        assert store.models.refer(reference).version == version, reference
    assert store.checkpoint("model:digits@stable").uuid == "aa-1"
    assert store.checkpoint("bb").uuid == "bb-2"
    store.models.set_alias("digits", "production", "stable")
    assert [each.aliases for each in store.models.versions("digits")] == [
        (),
        ("production", "stable"),
    ]
    store.models.remove_alias("digits", "stable")
    with pytest.raises(
        StoreError, match="no version or alias 'stable'; it has versions up to 2 and aliases 'prod"
    ):
        store.models.refer("digits@stable")
    for reference in ("digits/0", "digits/3", "digits@1", "digits/" + "9" * 30):
        with pytest.raises(StoreError, match="has no version or alias"):
            store.models.refer(reference)
    with pytest.raises(StoreError, match=r"'digits@' names no version; give NAME@ALIAS"):
        store.models.refer("digits@")


def test_numbers_of_deleted_versions_stay_unused(store: Store, uuids: list[str]) -> None:
    store.models.create("digits")
    add(store, "aa-1", "production")
    add(store, "bb-2")
    assert store.models.delete_version("digits", 2).uuid == "bb-2"
    assert add(store, "bb-2").version == 3
    with pytest.raises(StoreError, match="version 1 of model 'digits' has the alias 'production'"):
        store.models.delete_version("digits", 1)
    store.models.update_version("digits", 1, name="old", notes="n", labels=["l"], metadata={"a": 1})
    found = store.models.version("digits", "production")
    assert (found.name, found.notes, found.labels, found.metadata) == ("old", "n", ("l",), {"a": 1})
    store.models.delete("digits")
    assert store.models.list(archived=None) == []
    assert store.models.checkpoints() == set()


def test_version_needs_a_complete_checkpoint_once(store: Store, uuids: list[str]) -> None:
    store.models.create("digits")
    add(store, "aa-1")
    for uuid, reason in {
        "aa-1": "checkpoint aa-1 is version 1 of model 'digits' already",
        "cc-3": "checkpoint cc-3 is deleted; a version needs one that is complete",
        "dd": "no checkpoint 'dd'",
    }.items():
        with pytest.raises(StoreError, match=reason):
            add(store, uuid)
    store.checkpoints.mark_damaged("bb-2")
    with pytest.raises(StoreError, match="checkpoint bb-2 is damaged"):
        add(store, "bb-2")
    assert [each.uuid for each in store.models.versions("digits")] == ["aa-1"]


def test_deletion_that_a_driver_must_record_counts(
    store: Store, experiment: ExperimentRow, uuids: list[str]
) -> None:
    """Another process has deleted the files, and the driver has not read the command yet."""
    store.models.create("digits")
    with Store(store.home) as other:
        other.checkpoints.mark_deleted("aa-1")
    assert store.checkpoints.get("aa-1").state == "COMPLETED"
    with pytest.raises(StoreError, match="checkpoint aa-1 is deleted"):
        add(store, "aa-1")
    store.commands.take(experiment.id)
    with pytest.raises(StoreError, match="checkpoint aa-1 is deleted"):
        add(store, "aa-1")


def test_no_version_is_added_while_a_checkpoint_is_deleted(
    store: Store, uuids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.models.create("digits")
    monkeypatch.setattr(_models, "BUSY_SECONDS", 0.05)
    with Store(store.home) as other:
        with (
            other.models.deleting(),
            other.models.deleting(),
            pytest.raises(StoreError, match=r"models\.lock is locked by processes that delete"),
        ):
            add(store, "aa-1")
        add(store, "aa-1")
        with other.models.deleting(), pytest.raises(StoreError) as refused:
            other.models.check_free(["bb-2", "aa-1"])
    assert str(refused.value) == (
        "checkpoint aa-1 is version 1 of model 'digits', and is kept for it; delete that first: det"
        " model delete digits/1"
    )


def test_registry_is_private(store: Store, uuids: list[str]) -> None:
    store.models.create("digits")
    add(store, "aa-1")
    for name in ("models.db", "models.lock"):
        assert stat.S_IMODE((store.home / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b"no database" * 1000), "is not a store of det"),
        (lambda file: write(file, "PRAGMA user_version = 99"), "has schema version 99, newer than"),
        (lambda file: write(file, "UPDATE models SET labels = 7"), "holds a value that cannot"),
        (lambda file: write(file, "UPDATE models SET metadata = '[1]'"), "holds a value that"),
        (lambda file: write(file, "UPDATE models SET created = 'x'"), "holds a value that cannot"),
        (lambda file: write(file, "DROP TABLE aliases"), "no such table: aliases"),
    ],
)
def test_damaged_registry_is_an_error_of_one_line(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    with Store(tmp_path) as store:
        store.models.create("digits")
    damage(tmp_path / "models.db")
    with Store.reader(tmp_path) as store, pytest.raises(StoreError) as refused:
        store.models.list()
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "models.db"))
    assert "\n" not in str(refused.value)
    assert f"remove {tmp_path};" not in f"{refused.value};", "the home is more than its registry"


def write(file: Path, sql: str) -> None:
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(sql)


def test_file_whose_maker_was_killed_is_completed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        (tmp_path / "models.db").touch()
        with Store.reader(tmp_path) as reader:
            assert reader.models.list() == []
        store.models.create("digits")


def test_many_writers_at_once_lose_nothing(store: Store, uuids: list[str]) -> None:
    store.models.create("digits")
    failures: list[BaseException] = []

    def act(number: int) -> None:
        try:
            with Store(store.home) as mine:
                for turn in range(5):
                    mine.models.create(f"m{number}-{turn}")
                    mine.models.add_version(f"m{number}-{turn}", "aa-1", aliases=["a"])
                    mine.models.update("digits", description=str(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rows = store.models.list()
    assert len(rows) == 21
    assert {row.latest for row in rows} == {None, 1}


WRITE = """
import sys
from pathlib import Path
from det_driver.store import Store
with Store(Path(sys.argv[1])) as store:
    n = 0
    while True:
        name = f"{sys.argv[2]}-{n}"
        store.models.create(name, labels=["l"])
        store.models.add_version(name, "aa-1", aliases=["production"])
        print(name, flush=True)
        n += 1
"""


@pytest.mark.process
def test_kill_loses_no_acknowledged_version(
    store: Store, uuids: list[str], start: Callable[..., subprocess.Popen[str]]
) -> None:
    dice = random.Random(0)
    acknowledged: list[str] = []
    for turn in range(5):
        writer = start(WRITE, store.home, f"r{turn}")
        assert writer.stdout is not None
        acknowledged.append(writer.stdout.readline().strip())
        time.sleep(dice.random() * 0.1)
        writer.kill()
        acknowledged += writer.communicate()[0].split()
        with Store.reader(store.home) as reader:
            models = {row.name: row for row in reader.models.list()}
            assert all(models[name].aliases == {"production": 1} for name in acknowledged)
            assert all(row.labels == ("l",) for row in models.values())
    with closing(sqlite3.connect(store.models.path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
