"""Checkpoints behind URLs: what only uploads can get wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from det_core.errors import StorageError
from det_core.storage import FsspecStorage


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _fill(directory: Path, uuid: str = "one") -> None:
    (directory / "a.manifest").write_text("sorts before")
    (directory / "manifest.json").write_text(f'{{"uuid": "{uuid}"}}')
    (directory / "weights.pt").write_text("sorts after")


def _store(storage: FsspecStorage, uuid: str) -> None:
    with storage.store(uuid) as directory:
        _fill(directory, uuid)


def _files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_nothing_temporary_stays(scratch: Path) -> None:
    """Neither after writing nor after reading, whether it went well or not."""
    storage = FsspecStorage(f"memory://{uuid4()}")
    _store(storage, "one")
    with storage.restore("one") as directory:
        assert directory.is_relative_to(scratch)
    with pytest.raises(ZeroDivisionError), storage.store("two") as directory:
        (directory / "weights.pt").write_text(str(1 / 0))
    with pytest.raises(ZeroDivisionError), storage.restore("one"):
        print(1 / 0)
    assert _files(scratch) == []


@pytest.mark.parametrize("whose", ["open to all", "a link", "another's"])
def test_temporary_directory_that_others_can_change_is_not_used(scratch: Path, whose: str) -> None:
    """Its name can be guessed, and who makes it first could swap code that was verified."""
    trap = scratch / f"det-checkpoints-{os.getuid()}"
    if whose == "a link":
        (scratch / "elsewhere").mkdir()
        trap.symlink_to(scratch / "elsewhere")
    else:
        trap.mkdir()
        trap.chmod(0o777 if whose == "open to all" else 0o700)
    if whose == "another's":
        if os.getuid():
            pytest.skip("only root can give a directory to another user")
        os.chown(trap, 65534, 65534)
    storage = FsspecStorage(f"memory://{uuid4()}")
    _store(storage, "one")
    with storage.restore("one") as directory:
        assert not directory.resolve().is_relative_to(trap.resolve())
        assert directory.is_relative_to(scratch)
        assert [p.stat().st_mode & 0o077 for p in directory.parents if p.is_relative_to(scratch)][
            -2
        ] == 0
    assert _files(scratch) == []
    assert {path.name for path in scratch.iterdir()} <= {trap.name, "elsewhere"}


def test_the_manifest_is_uploaded_last(tmp_path: Path) -> None:
    """An upload that breaks off before it leaves nothing that is listed."""
    (tmp_path / "source").mkdir()
    _fill(tmp_path / "source")
    storage = FsspecStorage(f"file://{tmp_path}/storage")
    storage.begin("one")
    with pytest.raises(StorageError, match=r"cannot write to file://.*FileNotFoundError"):
        storage.put("one", tmp_path / "source", ["manifest.json", "a.manifest", "absent"])
    assert _files(tmp_path / "storage") == ["a.manifest"]
    assert not storage.exists("one")
    _store(FsspecStorage(f"file://{tmp_path}/storage"), "one")
    assert storage.files("one").keys() == {"a.manifest", "manifest.json", "weights.pt"}


def test_manifest_that_is_still_being_moved_is_incomplete(tmp_path: Path) -> None:
    """Filesystems that cannot rename copy, and may be interrupted."""
    storage = FsspecStorage(f"file://{tmp_path}/storage")
    _store(storage, "one")
    (tmp_path / "storage" / "one" / "manifest.json.part").write_text("{}")
    (tmp_path / "storage" / "one" / "manifest.json").write_text("")
    assert list(storage.list()) == []
    assert not storage.exists("one")


def test_a_deletion_that_broke_off_can_be_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is gone by then, but what confirms the name is still there."""
    storage = FsspecStorage(f"file://{tmp_path}/storage")
    _store(storage, "one")
    monkeypatch.setattr(storage._fs, "rm", lambda paths, recursive=False: 1 / 0)
    with pytest.raises(StorageError, match="cannot delete from"):
        storage.delete("one")
    assert list(storage.list()) == []
    monkeypatch.undo()
    assert FsspecStorage(f"file://{tmp_path}/storage").delete("one") == {}
    assert _files(tmp_path / "storage") == []


def test_deleting_begins_with_the_manifest(tmp_path: Path) -> None:
    """So that a deletion that breaks off leaves nothing that is listed."""
    storage = FsspecStorage(f"file://{tmp_path}/storage")
    _store(storage, "one")
    assert storage.delete("one", ["manifest.json"]).keys() == {"a.manifest", "weights.pt"}
    assert list(storage.list()) == []


WRITER = textwrap.dedent("""
    import sys
    from det_core.storage import FsspecStorage

    storage = FsspecStorage(sys.argv[1])
    print("ready", flush=True)
    for n in range(1000):
        with storage.store(f"{sys.argv[2]}-{n}") as directory:
            for part in range(4):
                (directory / f"part-{part}").write_bytes(b"x" * 200_000)
            (directory / "manifest.json").write_text('{"uuid": "%s-%d"}' % (sys.argv[2], n))
    """)


@pytest.mark.process
def test_killed_writer_leaves_whole_checkpoints_and_no_scratch(
    tmp_path: Path, scratch: Path
) -> None:
    """Eight are killed at random moments; the next one removes what they had in temporary files."""
    moments, environment = Random(3), {**os.environ, "TMPDIR": str(scratch)}
    url = f"file://{tmp_path}/storage"
    for attempt in range(8):
        command = [sys.executable, "-c", WRITER, url, f"run{attempt}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0.01, 0.12))
            writer.kill()
    storage = FsspecStorage(url)
    listed = list(storage.list())
    assert listed
    for uuid in listed:
        assert storage.files(uuid) == {
            "manifest.json": 12 + len(uuid),
            **{f"part-{n}": 200_000 for n in range(4)},
        }
    _store(storage, "last")
    assert _files(scratch) == []


BLOCKED = textwrap.dedent("""
    import sys
    sys.modules[sys.argv[2]] = None
    from det_core.errors import StorageError
    from det_core.storage import FsspecStorage
    try:
        FsspecStorage(sys.argv[1])
    except StorageError as error:
        print(error)
    """)


@pytest.mark.process
@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("s3://bucket/prefix", "s3fs"),
        ("gs://bucket", "gcsfs"),
        ("gcs://bucket", "gcsfs"),
        ("abfs://container", "adlfs"),
        ("az://container", "adlfs"),
        ("sftp://host/path", "paramiko"),
        ("webhdfs://host:50070/path", "requests"),
    ],
)
def test_a_missing_package_is_named_with_its_command(url: str, package: str) -> None:
    """Whether or not it is installed where this test runs."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, url, package],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert (
        done.stdout == f"{url} needs a package that is not installed. Try: pip install {package}\n"
    )


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(
        StorageError, match=r"cannot open s4://bucket: ValueError: Protocol not known: s4"
    ):
        FsspecStorage("s4://bucket")


def test_a_server_that_refuses_is_named_without_the_password() -> None:
    """Nothing listens on the port; the password stays with the user."""
    with pytest.raises(StorageError) as raised:
        FsspecStorage("ftp://me:secret@127.0.0.1:1/checkpoints")
    assert str(raised.value).startswith(
        "cannot open ftp://me@127.0.0.1:1/checkpoints: ConnectionRefusedError: "
    )
    assert "secret" not in str(raised.value)


class Away(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A filesystem whose server has gone away, as fsspec's own report it: by an OSError."""

    protocol = "away"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        raise ConnectionError(f"lost the line\nto {path}")

    info = _open = rm_file = mkdir = makedirs = put_file = get_file = ls


@pytest.mark.parametrize(
    ("use", "verb"),
    [
        (lambda storage: storage.check(), "write to"),
        (lambda storage: storage.begin("one"), "read"),
        (lambda storage: storage.put("one", Path("/etc"), ["hostname"]), "write to"),
        (lambda storage: storage.exists("one"), "read"),
        (lambda storage: storage.list(), "list"),
        (lambda storage: storage.delete("one"), "read"),
        (lambda storage: storage.files("one"), "read"),
    ],
)
def test_unreachable_storage_is_an_error_and_not_empty(
    use: Callable[[FsspecStorage], object], verb: str
) -> None:
    """In one line, whatever the filesystem raises."""
    fsspec.register_implementation("away", Away, clobber=True)
    with pytest.raises(
        StorageError, match=rf"^cannot {verb} away://root: ConnectionError: lost the line to .*$"
    ):
        use(FsspecStorage("away://root"))
