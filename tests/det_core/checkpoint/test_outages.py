"""A storage that goes away while a checkpoint is read is waited for, like one that was away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from det_core.checkpoint import read_checkpoint, write_checkpoint
from det_core.errors import CheckpointDamaged, CheckpointError, StorageUnreachable
from det_core.storage import FsspecStorage, LocalStorage, Storage
from det_core.train.failure import explained
from det_core.train.host import Outcome

UNREADABLE = "/proc/self/mem"
"""The kernel refuses to read its beginning, which is not mapped.

The error is EIO, as of a file server that is away.
"""


def write(storage: Storage) -> None:
    def fill(directory: Path) -> None:
        (directory / "empty").touch()
        (directory / "weights").write_bytes(bytes(1000))

    write_checkpoint(storage, fill, uuid="one", framework="torch", batches=3)


def let_fail(file: Path) -> Path:
    """Put in the place of a file one that cannot be read."""
    file.unlink()
    file.symlink_to(UNREADABLE)
    return file


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path / "checkpoints")
    write(storage)
    return storage


def read_wrapped(file: Path) -> None:
    """Read as a framework's reader does, which has an error of its own."""
    try:
        file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read safely") from error


READERS: dict[str, Callable[[LocalStorage, Path, Path], object]] = {
    "the manifest": lambda storage, place, target: (
        let_fail(place / "manifest.json") and load(storage)
    ),
    # The link has no size, either, so that only its content tells.
    "the digests": lambda storage, place, target: let_fail(place / "empty") and load(storage),
    "the state": lambda storage, place, target: load(
        storage, lambda path: let_fail(path / "weights").read_bytes()
    ),
    "a framework's reader": lambda storage, place, target: load(
        storage, lambda path: read_wrapped(let_fail(path / "weights"))
    ),
    "a copy": lambda storage, place, target: (
        let_fail(place / "weights") and storage.download("one", target)
    ),
}


def load(storage: Storage, use: Callable[[Path], object] = lambda path: None) -> None:
    with read_checkpoint(storage, "one") as (path, _):
        use(path)


def must_be_waited_for(error: BaseException, said: str) -> None:
    outcome, sentence, traceback = explained(error)
    assert outcome is Outcome.UNREACHABLE
    assert said in sentence
    assert traceback == ""


@pytest.mark.parametrize("what", READERS)
def test_a_file_system_that_does_not_answer_is_waited_for(
    what: str, storage: LocalStorage, tmp_path: Path
) -> None:
    with pytest.raises(StorageUnreachable) as raised:
        READERS[what](storage, storage.root / "one", tmp_path / "copy")
    must_be_waited_for(raised.value, f"cannot read checkpoints in {storage.root}: ")


@pytest.mark.parametrize("when", ["before the digests", "behind them"])
def test_a_file_system_that_is_unmounted_is_waited_for(
    when: str, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint is not taken for a damaged one, in whose place an older one would be used."""

    def unmount(*args: object) -> None:
        storage.root.rename(storage.root.with_name("elsewhere"))
        storage.root.mkdir()

    def read() -> None:
        if when == "behind them":
            load(storage, lambda path: unmount() or (path / "weights").read_bytes())
        with storage.restore("one"):
            unmount()
            raise CheckpointDamaged("checkpoint one: weights is missing, 1000 bytes expected")

    with pytest.raises(StorageUnreachable) as raised:
        read()
    must_be_waited_for(
        raised.value, f"no checkpoint one in {storage.root}, which holds no checkpoint at all"
    )


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("mine"), FileNotFoundError(2, "No such file", "mine")], ids=repr
)
def test_what_a_reader_raises_itself_stays_what_it_is(
    storage: LocalStorage, error: Exception
) -> None:
    def fail(path: Path) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        load(storage, fail)
    assert raised.value is error


class Breaking(MemoryFileSystem):  # type: ignore[misc]
    """Loses the line in the middle of a file, and says so or not, as filesystems of fsspec do."""

    protocol = "breaking"
    says = True

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        data = self.cat_file(rpath)
        Path(lpath).write_bytes(data[: len(data) // 2] if "weights" in rpath else data)
        if self.says and "weights" in rpath:
            raise ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("how", ["read", "download"])
def test_a_download_that_breaks_off_is_waited_for(
    how: str, says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are not taken for damaged ones, and none stays behind."""
    fsspec.register_implementation("breaking", Breaking, clobber=True)
    monkeypatch.setattr(Breaking, "says", says)
    storage = FsspecStorage(f"breaking://{uuid4()}")
    write(storage)
    with pytest.raises(StorageUnreachable) as raised:
        load(storage) if how == "read" else storage.download("one", tmp_path / "copy")
    broken = "ConnectionResetError" if says else "of one/weights, 500 of 1000 bytes arrived"
    must_be_waited_for(raised.value, broken)
