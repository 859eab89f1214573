"""A disk that fills while a checkpoint is written."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from det_core.checkpoint import write_checkpoint
from det_core.errors import StorageError
from det_core.storage import FsspecStorage, LocalStorage

MIB = 1 << 20


@pytest.fixture
def limited() -> Iterator[None]:
    """Let no file of this process grow beyond 1 MiB.

    What anyone may do, and the kernel then refuses for real.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


FULL = textwrap.dedent("""
    import errno, os, sys
    from pathlib import Path
    from det_core.checkpoint import write_checkpoint
    from det_core.errors import StorageError
    from det_core.storage import LocalStorage

    root = Path(sys.argv[1])
    storage = LocalStorage(root)
    kept = write_checkpoint(storage, lambda path: (path / "w").write_bytes(b"w" * 100), framework="x", batches=1)
    def overfill(path):
        try:
            (path / "w").write_bytes(b"w" * (8 << 20))
        except OSError as error:
            if sys.argv[2] == "as torch says it":
                raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0") from None
            raise
    try:
        write_checkpoint(storage, overfill, framework="x", batches=2)
    except StorageError as error:
        print(error)
    assert list(storage.list()) == [kept.uuid], list(storage.list())
    assert sorted(path.name for path in root.iterdir()) == [kept.uuid], list(root.iterdir())
    write_checkpoint(storage, lambda path: (path / "w").write_bytes(b"w" * 100), framework="x", batches=3)
    """)

IN_A_SMALL_FILESYSTEM = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'


@pytest.mark.process
@pytest.mark.parametrize("how", ["as the system says it", "as torch says it"])
def test_full_disk_error_has_the_free_space_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    """On a filesystem of 4 MiB of its own, mounted in a namespace that ends with the process."""
    script = [sys.executable, "-c", FULL, str(tmp_path), how]
    unshare = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
    mounted = [*unshare, "sh", "-c", IN_A_SMALL_FILESYSTEM, "sh", str(tmp_path)]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip(
            "this machine lets nobody mount a filesystem; the tests below fill one file instead"
        )
    done = subprocess.run([*mounted, *script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot write checkpoint " in done.stdout
    assert f" to {tmp_path}/.staging/writing-" in done.stdout
    assert (
        "No space left on device, 0 B free; make room there, or name another place" in done.stdout
    )
    assert len(done.stdout.splitlines()) == 1


def _overfill(directory: Path) -> None:
    directory.joinpath("weights.pt").write_bytes(b"w" * 2 * MIB)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("make", [LocalStorage, lambda root: FsspecStorage(f"file://{root}")])
def test_a_file_that_may_not_grow_is_a_storage_error(
    tmp_path: Path, make: Callable[[Path], LocalStorage | FsspecStorage]
) -> None:
    """Nothing stays of it, and the next, smaller one is written."""
    storage = make(tmp_path / "root")
    with pytest.raises(
        StorageError,
        match=r"cannot write checkpoint [0-9a-f-]+ to /.*: File too large, .* free; make",
    ):
        write_checkpoint(storage, _overfill, framework="x", batches=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    kept = write_checkpoint(
        storage, lambda path: (path / "w").write_bytes(b"w"), framework="x", batches=2
    )
    assert list(storage.list()) == [kept.uuid]


@pytest.mark.usefixtures("limited")
def test_a_put_that_does_not_fit_is_a_storage_error(tmp_path: Path) -> None:
    """The source was written elsewhere; its copy fails."""
    (tmp_path / "source").mkdir()
    with (tmp_path / "source" / "weights.pt").open("wb") as file:
        file.write(b"w" * MIB)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (MIB // 2, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )
    storage = LocalStorage(tmp_path / "root")
    storage.begin("one")
    with pytest.raises(StorageError, match=r"cannot write checkpoint one to .*: File too large"):
        storage.put("one", tmp_path / "source", ["weights.pt"])
    storage.abort("one")
    assert list((tmp_path / "root").iterdir()) == []


def test_an_error_that_is_not_about_space_stays_what_it_is(tmp_path: Path) -> None:
    """The user's own mistake is not dressed up as the disk's."""

    def write(path: Path) -> None:
        raise OSError(errno.EINVAL, "mine")

    with pytest.raises(OSError, match="mine") as raised:
        write_checkpoint(LocalStorage(tmp_path), write, framework="x", batches=1)
    assert raised.type is OSError
