"""Disks that are damaged, read-only or full: one sentence, and nothing half written."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.store import Store
from det_driver.store._database import Database
from det_driver.store._schema import MIGRATIONS


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A directory that any user reaches, unlike pytest's own."""
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    yield home
    home.chmod(0o755)
    shutil.rmtree(home)


def fill(store: Store) -> int:
    """Append and project until the store refuses; returns how many transactions it took."""
    experiment = store.experiments.create(name="x", config="{}")
    for count in range(100_000):
        with store.transaction():
            store.journal.append(experiment.id, '"' + "x" * 500 + '"')
            store.trials.create(experiment.id, count, {"x": "x" * 500}, seed=0)
    pytest.fail("the disk never filled up")


def counts(store: Store) -> tuple[int, int]:
    return len([*store.journal.read(1)]), len(store.trials.list(1))


def in_child(act: Callable[[], None]) -> None:
    """Run in a forked child, which may give up its rights; a child that fails says why."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def as_nobody(act: Callable[[], None]) -> None:
    """Run without root's right to write everywhere."""

    def act_as_nobody() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        act()

    in_child(act_as_nobody)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "det.db").write_bytes(b"these are not the bytes of a database" * 100)

    for open in (Store, Store.reader):
        with pytest.raises(StoreError, match=rf"^{tmp_path}/det.db is not a store of det \(file is not a database\); "):
            open(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for _ in range(50):
            store.experiments.create(name="x" * 500, config="{}")
    with (tmp_path / "det.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(tmp_path / "det.db") - 4096))

    def use() -> None:
        with Store(tmp_path) as store:
            store.experiments.list()

    with pytest.raises(
        StoreError, match=r"^.*/det.db is damaged \(database disk image is malformed\); restore it from"
    ):
        use()


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    with pytest.raises(
        StoreError, match=r"^cannot make the home .*/home: File exists; choose one that you can write to$"
    ):
        Store(tmp_path / "home")


def test_a_home_without_the_right_to_write_is_named(open_home: Path) -> None:
    open_home.chmod(0o555)

    def act() -> None:
        with pytest.raises(StoreError, match=r"^cannot make the home .*: Permission denied; choose one that you can"):
            Store(open_home / "home")
        with pytest.raises(
            StoreError, match=r"det.db cannot be opened \(unable to open database file\); choose a home"
        ):
            Store(open_home)

    as_nobody(act)


@pytest.mark.parametrize("closed", [True, False])
def test_a_store_that_cannot_be_written_can_be_read(open_home: Path, closed: bool) -> None:
    store = Store(open_home)
    store.experiments.create(name="digits", config="{}")
    if closed:
        store.close()
    open_home.chmod(0o555)

    def act() -> None:
        with Store.reader(open_home) as reader:
            assert [found.name for found in reader.experiments.list()] == ["digits"]
        with pytest.raises(
            StoreError, match=r"det.db cannot be (written: it is read-only here|opened \(.*\)); choose a"
        ):
            Store(open_home).experiments.create(name="x", config="{}")

    as_nobody(act)
    store.close()


def test_an_old_schema_that_cannot_be_migrated_is_named(open_home: Path) -> None:
    Database(open_home / "det.db", migrations=MIGRATIONS[:1]).close()
    open_home.chmod(0o555)

    def act() -> None:
        with pytest.raises(StoreError, match=r"has schema version 1, and this det reads version 2; open it once where"):
            Database(open_home / "det.db", readonly=True, migrations=(MIGRATIONS[0], ("CREATE TABLE notes (text)",)))

    as_nobody(act)


@contextmanager
def mounted(place: Path, size: str) -> Iterator[None]:
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("only root can mount a small disk; the limit on file sizes is tested instead")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    with mounted(tmp_path, "1m"):
        with Store(tmp_path) as store:
            with pytest.raises(
                StoreError, match=r"det.db: the disk (is full|failed .*); nothing of the last change was"
            ):
                fill(store)
            events, trials = counts(store)
            assert events == trials > 0

            subprocess.run(["mount", "-o", "remount,size=8m", tmp_path], check=True)
            store.journal.append(1, "{}")
            assert counts(store) == (events + 1, trials)

        with Store(tmp_path) as store:
            assert counts(store) == (events + 1, trials)


def test_a_write_that_the_system_refuses_leaves_nothing_half_written(tmp_path: Path) -> None:
    def act() -> None:
        with Store(tmp_path) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))
            with pytest.raises(
                StoreError, match=r"det.db: the disk (is full|failed .*); nothing of the last change was"
            ):
                fill(store)
            events, trials = counts(store)
            assert events == trials > 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            store.journal.append(1, "{}")

    in_child(act)
    with Store(tmp_path) as store:
        events, trials = counts(store)
        assert events == trials + 1


def test_an_experiment_whose_directory_cannot_be_made_is_not_recorded(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        (tmp_path / "experiments").write_text("in the way")
        with pytest.raises(
            StoreError, match=r"^cannot make .*/experiments/1: (Not a directory|File exists); check the"
        ):
            store.experiments.create(name="x", config="{}")

        assert store.experiments.list() == []


def test_what_is_left_of_a_deleted_experiment_is_named(open_home: Path) -> None:
    open_home.chmod(0o777)

    def act() -> None:
        with Store(open_home / "home") as store:
            store.experiments.create(name="x", config="{}")
            kept = store.experiment_dir(1) / "kept"
            kept.mkdir()
            (kept / "file").write_text("")
            kept.chmod(0o555)
            with pytest.raises(
                StoreError, match=r"^experiment 1 is deleted, but not all of .*/1: Permission denied; remove"
            ):
                store.experiments.delete(1)
            assert store.experiments.list() == []
            kept.chmod(0o755)

    as_nobody(act)
