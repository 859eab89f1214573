"""Checkpoints in a directory: whole or not at all, whatever happens to the writer."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from det_core.errors import StorageError
from det_core.storage import LocalStorage
from det_core.storage._files import staged

SIZE = 300_000

WRITER = textwrap.dedent("""
    import sys
    from det_core.storage import LocalStorage

    storage = LocalStorage(sys.argv[1])
    print("ready", flush=True)
    for n in range(1000):
        with storage.store(f"{sys.argv[2]}-{n}") as directory:
            for part in range(4):
                (directory / f"part-{part}").write_bytes(bytes([n % 256]) * int(sys.argv[3]))
            (directory / "manifest.json").write_text('{"uuid": "%s-%d"}' % (sys.argv[2], n))
    """)

HOLDER = textwrap.dedent("""
    import sys, time
    from det_core.storage import LocalStorage

    with LocalStorage(sys.argv[1]).store(sys.argv[2]) as directory:
        (directory / "part").write_bytes(b"x" * 1000)
        print("ready", flush=True)
        time.sleep(60)
    """)


@pytest.mark.process
def test_a_killed_writer_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """Twelve writers are killed at random moments.

    Every checkpoint listed then holds every byte.
    """
    moments = random.Random(7)
    for attempt in range(12):
        with _running(WRITER, tmp_path, f"run{attempt}", SIZE) as writer:
            time.sleep(moments.uniform(0, 0.08))
            writer.send_signal(signal.SIGKILL)
    storage = LocalStorage(tmp_path)
    listed = list(storage.list())
    assert listed
    for uuid in listed:
        content = bytes([int(uuid.partition("-")[2]) % 256]) * SIZE
        with storage.restore(uuid) as directory:
            assert {path.name for path in directory.iterdir()} == {
                "manifest.json",
                *(f"part-{n}" for n in range(4)),
            }
            assert all((directory / f"part-{n}").read_bytes() == content for n in range(4))


@pytest.mark.process
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """At once, since the dead writer's lock is gone; and the uuid can be written again."""
    with _running(HOLDER, tmp_path, "one") as writer:
        assert _hidden(tmp_path)
        writer.send_signal(signal.SIGKILL)
    _store(LocalStorage(tmp_path), "two")
    assert _hidden(tmp_path) == []
    _store(LocalStorage(tmp_path), "one")
    assert list(LocalStorage(tmp_path).list()) == ["one", "two"]


@pytest.mark.process
def test_what_a_living_writer_writes_is_left_alone(tmp_path: Path) -> None:
    """However long it takes."""
    with _running(HOLDER, tmp_path, "one"):
        _age(tmp_path, hours=30)
        _store(LocalStorage(tmp_path), "two")
        assert [path for path in tmp_path.rglob("part") if path.stat().st_size == 1000]
        with pytest.raises(
            StorageError, match=r"writing-one.* is being written by another process"
        ):
            LocalStorage(tmp_path).begin("one")


FLIPPER = textwrap.dedent("""
    import contextlib, os, sys

    print("ready", flush=True)
    while True:
        with contextlib.suppress(OSError):
            os.mkdir(sys.argv[1])
            os.rmdir(sys.argv[1])
    """)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[None]:
    """Others that come and go.

    The directory apart is made by the first of them and removed by the last.
    """
    command = [sys.executable, "-c", FLIPPER, str(tmp_path / ".staging")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.kill()


@pytest.mark.process
@pytest.mark.usefixtures("others")
def test_a_writer_does_not_trip_over_others_that_come_and_go(tmp_path: Path) -> None:
    for _ in range(20_000):
        assert staged(tmp_path, "uuid") is None


@pytest.mark.process
@pytest.mark.usefixtures("others")
def test_nor_does_who_deletes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for _ in range(1_000):
        (tmp_path / "one").mkdir()
        (tmp_path / "one" / "manifest.json").write_text('{"uuid": "one"}')
        assert storage.delete("one") == {}


def test_file_in_place_of_the_staging_directory_is_an_error(tmp_path: Path) -> None:
    """Neither a write nor a deletion waits forever."""
    storage = LocalStorage(tmp_path)
    _store(storage, "one")
    (tmp_path / ".staging").write_text("somebody's")
    for write in (lambda: storage.begin("two"), lambda: storage.delete("one")):
        with pytest.raises(StorageError, match=r"cannot write checkpoints to .*: Not a directory"):
            write()


@pytest.mark.parametrize(("hours", "left"), [(0.9, 1), (1.1, 0)])
def test_what_another_host_left_is_removed_after_an_hour(
    tmp_path: Path, hours: float, left: int
) -> None:
    """Locks of other hosts may not be seen here, so that age decides."""
    (tmp_path / ".staging" / "writing-one@another-host").mkdir(parents=True)
    (tmp_path / ".staging" / "writing-one@another-host" / "part").write_text("x")
    _age(tmp_path, hours)
    _store(LocalStorage(tmp_path), "two")
    assert len(_hidden(tmp_path)) == left


def test_an_interrupted_deletion_is_completed(tmp_path: Path) -> None:
    """What it left is not a checkpoint."""
    _store(LocalStorage(tmp_path), "one")
    (tmp_path / ".staging").mkdir()
    (tmp_path / "one").rename(tmp_path / ".staging" / "deleting-one-1234")
    assert list(LocalStorage(tmp_path).list()) == []
    _store(LocalStorage(tmp_path), "two")
    assert _hidden(tmp_path) == []


def test_a_directory_that_is_no_checkpoint_is_none(tmp_path: Path) -> None:
    """Such as what other programs keep there, a checkpoint under another name, and half of one."""
    storage = LocalStorage(tmp_path)
    _store(storage, "one")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "weights.pt").write_text("x")
    shutil.copytree(tmp_path / "one", tmp_path / "copy-of-one")
    (tmp_path / "notes").write_text("a file")
    for name, make in (("fifo", os.mkfifo), ("folder", os.mkdir)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "manifest.json")
    assert list(storage.list()) == ["one"]
    assert [
        name
        for name in ("one", "half", "copy-of-one", "notes", "fifo", "folder")
        if storage.exists(name)
    ] == ["one"]
    with pytest.raises(StorageError, match="half is already in"):
        storage.begin("half")


def test_a_save_looks_at_nothing_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root may be shared by thousands of trials: it is never listed."""
    listed: list[str] = []

    def noted(real):
        return lambda path=".": listed.append(str(path)) or real(path)

    monkeypatch.setattr(os, "listdir", noted(os.listdir))
    monkeypatch.setattr(os, "scandir", noted(os.scandir))
    storage = LocalStorage(tmp_path / "root")
    _store(storage, "one")
    with pytest.raises(ZeroDivisionError), storage.store("two"):
        print(1 / 0)
    storage.delete("one")
    assert str(tmp_path / "root" / ".staging") in listed
    assert str(tmp_path / "root") not in listed


def test_restoring_copies_nothing(tmp_path: Path) -> None:
    """A local checkpoint is read where it lies."""
    storage = LocalStorage(tmp_path)
    _store(storage, "one")
    with storage.restore("one") as directory:
        assert directory == tmp_path / "one"
    assert directory.is_dir()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """By `check`, and by the first checkpoint."""
    (tmp_path / "file").write_text("not a directory")
    storage = LocalStorage(tmp_path / "file" / "checkpoints")
    with pytest.raises(
        StorageError, match=r"cannot write checkpoints to .*/file/checkpoints: .*Not a directory"
    ):
        storage.check()
    with pytest.raises(
        StorageError, match=r"cannot write checkpoints to .*/file/checkpoints: .*Not a directory"
    ):
        storage.begin("one")


def test_putting_needs_a_beginning(tmp_path: Path) -> None:
    """A rank that comes too early is told so."""
    with pytest.raises(StorageError, match="checkpoint one was not begun"):
        LocalStorage(tmp_path).put("one", tmp_path, ["weights.pt"])


def test_putting_a_file_that_is_not_there_names_it(tmp_path: Path) -> None:
    """And the checkpoint can be aborted."""
    storage = LocalStorage(tmp_path)
    storage.begin("one")
    with pytest.raises(StorageError, match=r"weights\.pt: No such file"):
        storage.put("one", tmp_path / "source", ["weights.pt"])
    storage.abort("one")
    assert _hidden(tmp_path) == []


def test_a_rank_that_did_not_begin_cannot_discard(tmp_path: Path) -> None:
    """`abort` is for the process that called `begin`."""
    chief = LocalStorage(tmp_path)
    chief.begin("one")
    LocalStorage(tmp_path).abort("one")
    assert _hidden(tmp_path)
    chief.abort("one")
    assert _hidden(tmp_path) == []


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a shell would."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert LocalStorage("~/checkpoints").url("one") == str(tmp_path / "checkpoints" / "one")


class _running:
    """A process that runs `script`, ready when it has said so, ended when the body ends."""

    def __init__(self, script: str, *arguments: object) -> None:
        self._command = [sys.executable, "-c", script, *map(str, arguments)]

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self._process

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def _store(storage: LocalStorage, uuid: str) -> None:
    with storage.store(uuid) as directory:
        (directory / "manifest.json").write_text(f'{{"uuid": "{uuid}"}}')


def _hidden(root: Path) -> list[str]:
    return [path.name for path in root.glob(".staging/*")]


def _age(root: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    for path in [*root.rglob("*"), *_dotted(root)]:
        os.utime(path, (then, then))


def _dotted(root: Path) -> Iterator[Path]:
    for path in root.glob(".*"):
        yield from path.rglob("*")
        yield path


def test_checkpoint_is_synced_to_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is synced after the files in it."""
    synced, fsync = list[str](), os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with LocalStorage(tmp_path).store("one") as directory:
        (directory / "code" / "more").mkdir(parents=True)
        for name in ("manifest.json", "weights", "code/a.py", "code/more/b.py"):
            (directory / name).write_text('{"uuid": "one"}')
    (before,) = {str(Path(path).parent) for path in synced if path.endswith("/weights")}
    *inside, root = [path.removeprefix(before) for path in synced]
    assert root == str(tmp_path)
    assert sorted(inside) == sorted(
        ["", "/code", "/code/more", "/manifest.json", "/weights", "/code/a.py", "/code/more/b.py"]
    )
    assert inside[-1] == ""  # the content before the names
    assert inside.index("/code/more/b.py") < inside.index("/code/more") < inside.index("/code")
