"""Disks that are damaged, read-only or full: one sentence, and nothing half written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.other_user import as_other, entered_by_all, needs_other

from det_core.errors import StoreError
from det_driver.cli import main
from det_driver.store import Store
from det_driver.store._database import Database
from det_driver.store._schema import EXPERIMENT


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
    for count in range(100_000):
        with store.transaction():
            store.journal.append(1, '"' + "x" * 500 + '"')
            store.trials.create(1, count, {"x": "x" * 500}, seed=0)
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The database of experiment 1, beside which there is another."""
    with Store(tmp_path) as store:
        for _ in range(2):
            store.experiments.create(name="x" * 500, config="{}" + " " * 20_000)
    return tmp_path / "experiments" / "1" / "experiment.db"


def test_corrupt_database_is_named_and_affects_no_other(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"these are not the bytes of a database" * 100)

    for open in (Store, Store.reader):
        with open(tmp_path) as store:
            with pytest.raises(
                StoreError, match=rf"^{file} is not a store of det \(file is not a database\); "
            ):
                store.experiments.get(1)
            assert store.experiments.get(2).id == 2
            with pytest.raises(
                StoreError, match=r"^experiment 1 cannot be read, and may need these"
            ):
                store.checkpoints.elsewhere(2)
            with pytest.raises(StoreError, match=r"^no checkpoint 'u'; "):
                store.checkpoints.get("u")
            with pytest.raises(StoreError, match=r"^no trial 9; "):
                store.trials.get(9)


def test_a_damaged_file_is_named(file: Path, tmp_path: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xff" * (os.path.getsize(file) - 4096))

    with Store(tmp_path) as store:
        with pytest.raises(
            StoreError,
            match=(
                r"1/experiment.db is damaged \(database disk image is malformed\); restore it from"
            ),
        ):
            store.experiments.get(1)
        assert [each.experiment.id for each in store.experiments.list()] == [2]
        assert len(store.index.repair()) == 2


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    with pytest.raises(
        StoreError,
        match=r"^cannot make the home .*/home: File exists; choose one that you can write to$",
    ):
        Store(tmp_path / "home")


@pytest.mark.process
def test_a_home_without_the_right_to_write_is_named(open_home: Path) -> None:
    open_home.chmod(0o555)

    def act() -> None:
        with pytest.raises(
            StoreError,
            match=r"^cannot make the home .*: Permission denied; choose one that you can",
        ):
            Store(open_home / "home")
        with pytest.raises(
            StoreError,
            match=r"^cannot make the home .*: Permission denied; choose one that you can",
        ):
            Store(open_home)

    as_nobody(act)


@pytest.mark.process
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("index", [True, False])
def test_a_store_that_cannot_be_written_can_be_read(
    open_home: Path, closed: bool, index: bool
) -> None:
    store = Store(open_home)
    store.experiments.create(name="digits", config="{}")
    held = store._databases.lock(1)
    held.__enter__()
    if closed:
        held.__exit__(None, None, None)
        store.close()
    if not index:
        (open_home / "index.db").unlink()
    for place in (open_home, open_home / "experiments", open_home / "experiments" / "1"):
        place.chmod(0o555)
    for file in open_home.rglob("*.db*"):
        file.chmod(0o444)  # another user's, who may look

    def act() -> None:
        with Store.reader(open_home) as reader:
            assert [found.experiment.name for found in reader.experiments.list()] == ["digits"]
            assert reader.experiments.get(1).name == "digits"
        with pytest.raises(
            StoreError,
            match=r"index\.db cannot be written: it is another user's; choose a home"
            if index
            else r"^cannot make .*/experiments/2: Permission denied; check the home's rights",
        ):
            Store(open_home).experiments.create(name="x", config="{}")

    as_nobody(act)
    for place in (open_home, open_home / "experiments", open_home / "experiments" / "1"):
        place.chmod(0o755)


@pytest.mark.process
def test_an_old_schema_that_cannot_be_migrated_is_named(open_home: Path) -> None:
    Database(open_home / "x.db", EXPERIMENT).close()
    (open_home / "x.db").chmod(0o444)
    open_home.chmod(0o555)

    def act() -> None:
        now = len(EXPERIMENT)
        sentence = (
            f"has schema version {now}, and this det reads version {now + 1}; open it once where"
        )
        with pytest.raises(StoreError, match=sentence):
            Database(
                open_home / "x.db", (*EXPERIMENT, ("CREATE TABLE notes (text)",)), readonly=True
            )

    as_nobody(act)


def test_home_and_databases_are_private_even_if_made_earlier(tmp_path: Path) -> None:
    """Those with wider permissions are restricted to their owner when they are opened."""
    home = tmp_path / "home"

    def modes() -> dict[str, str]:
        files = [home, *home.rglob("index.db*"), *home.rglob("experiment.db*"), *home.rglob("lock")]
        return {path.name: oct(path.stat().st_mode & 0o777) for path in files}

    def use() -> None:
        with Store(home) as store, store.lock(1):
            store.experiments.update(1, progress=0.5)
            found = modes()
            assert found.pop("home") == "0o700"
            assert len(found) >= 5
            assert {*found.values()} == {"0o600"}

    before = os.umask(0o022)
    try:
        with Store(home) as store:
            store.experiments.create(name="x", config="{}")
        use()
        home.chmod(0o755)
        for file in home.rglob("*.db*"):
            file.chmod(0o644)
        use()
    finally:
        os.umask(before)


def test_a_place_of_everybody_stays_everybodys(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    Store(tmp_path).close()
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


@contextmanager
def mounted(place: Path, size: str) -> Iterator[None]:
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("only root can mount a small disk; the limit on file sizes is tested instead")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.process
def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    with mounted(tmp_path, "1m"):
        with Store(tmp_path) as store:
            store.experiments.create(name="x", config="{}")
        with Store(tmp_path) as store, store.lock(1):
            with pytest.raises(
                StoreError,
                match=(
                    r"experiment.db: the disk (is full|failed .*); nothing of the last change was"
                ),
            ):
                fill(store)
            events, trials = counts(store)
            assert events == trials > 0

            subprocess.run(["mount", "-o", "remount,size=8m", tmp_path], check=True)
            store.journal.append(1, "{}")
            assert counts(store) == (events + 1, trials)

        with Store(tmp_path) as store:
            assert counts(store) == (events + 1, trials)


@pytest.mark.process
def test_write_refused_by_the_system_leaves_no_partial_change(tmp_path: Path) -> None:
    def act() -> None:
        with Store(tmp_path) as store:
            store.experiments.create(name="x", config="{}")
        with Store(tmp_path) as store, store.lock(1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))
            with pytest.raises(
                StoreError,
                match=(
                    r"experiment.db: the disk (is full|failed .*); nothing of the last change was"
                ),
            ):
                fill(store)
            events, trials = counts(store)
            assert events == trials > 0
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            store.journal.append(1, "{}")

    in_child(act)
    with Store(tmp_path) as store:
        events, trials = counts(store)
        assert events == trials + 1


def test_experiment_without_a_directory_is_not_recorded(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        (tmp_path / "experiments").rmdir()
        (tmp_path / "experiments").write_text("in the way")
        with pytest.raises(
            StoreError,
            match=r"^cannot make .*/experiments/1: (Not a directory|File exists); check the",
        ):
            store.experiments.create(name="x", config="{}")

        assert store.experiments.list() == []


@pytest.mark.process
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
                StoreError,
                match=(
                    r"^experiment 1 is deleted, but not all of .*deleted-1-.*: Permission denied;"
                    r" remove"
                ),
            ):
                store.experiments.delete(1)
            assert store.experiments.list() == []
            next((open_home / "home" / "experiments").glob(".deleted-1-*/kept")).chmod(0o755)
            store.experiments.create(name="y", config="{}")
            store.experiments.delete(2)
            assert [*(open_home / "home" / "experiments").iterdir()] == [], (
                "the next deletion goes on with it"
            )

    as_nobody(act)


@pytest.mark.parametrize("index", ["lost", "intact"])
@pytest.mark.parametrize(
    "damage",
    [
        "",
        "UPDATE experiment SET state = 'DANCING'",
        "UPDATE experiment SET labels = '{'",
        "DELETE FROM experiment",
        "UPDATE trials SET state = 'x'",
        "DROP TABLE trials",
    ],
)
def test_unreadable_experiment_does_not_affect_others(
    tmp_path: Path,
    damage: str,
    index: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty database is what a full disk or a lost power supply leaves.

    `det list` has a row that says why.
    """
    with Store(tmp_path) as store:
        ids = [store.experiments.create(name=name, config="{}").id for name in "ab"]
        with store.lock(ids[0]):
            store.trials.create(ids[0], 0, {}, 0)
    file = tmp_path / "experiments" / str(ids[0]) / "experiment.db"
    if damage:
        with closing(sqlite3.connect(file)) as database:
            database.execute(damage)
            database.commit()
    else:
        for each in file.parent.glob("experiment.db*"):
            each.write_bytes(b"")
    for each in tmp_path.glob("index.db*") if index == "lost" else ():
        each.unlink()
    for _ in range(2):
        with Store(tmp_path) as store:
            unread: dict[int, str] = {}
            listed = [each.experiment.id for each in store.experiments.list(unread=unread)]
            if index == "lost" or not damage:
                assert listed == ids[1:]
                assert list(unread) == ids[:1]
                assert str(file) in unread[ids[0]]
            with pytest.raises(StoreError, match=r"experiment\.db"):
                store.experiments.summary(ids[0])
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["list"])
    _, good, bad = capsys.readouterr().out.splitlines()
    assert good.split()[:3] == [str(ids[1]), "b", "ACTIVE"]
    assert bad.split()[0] == str(ids[0])
    assert str(file) in bad
    assert bad.endswith("UNREADABLE")
    with pytest.raises(SystemExit, match="0"):
        main(["list", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [each["experiment"]["state"] for each in rows] == ["ACTIVE", "UNREADABLE"]
    assert str(file) in rows[1]["experiment"]["reason"]


@needs_other
@pytest.mark.process
def test_another_users_index_is_named_and_no_experiment_is_left() -> None:
    """No device could be leased, so that the experiment would be paused at once."""
    with entered_by_all() as home:
        with Store(home) as store:
            store.experiments.create(name="mine", config="{}")
        for directory in (home, home / "experiments"):
            directory.chmod(0o777)
        (home / "index.db").chmod(0o644)

        def create() -> str:
            try:
                with Store(home) as store:
                    store.experiments.create(name="theirs", config="{}")
            except StoreError as error:
                return str(error)
            return "created"

        assert as_other(create) == (
            f"{home}/index.db cannot be written: it is another user's; choose a home that you can"
            " write to"
        )
        assert [path.name for path in (home / "experiments").iterdir()] == ["1"]
