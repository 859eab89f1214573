"""The lock of an experiment, and what tells processes apart."""

from __future__ import annotations

import fcntl
import os
import re
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from io import FileIO
from pathlib import Path

from det_core.errors import ExperimentBusy, StoreError

_BRIEF_SECONDS = 0.3
"""Who looks whether an experiment is held, or changes its name, has done so by then."""


@contextmanager
def experiment_lock(experiment_id: int, directory: Path) -> Iterator[None]:
    """Be the only one inside; the kernel releases the lock when the process dies, however it dies.

    ExperimentBusy names the process that holds it, StoreError says why it cannot be made.
    """
    path = directory / "lock"
    with ExitStack() as undo:
        try:
            file = undo.enter_context(FileIO(path, "r+", opener=_open))
            _wait(file)
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except BlockingIOError as error:
            holder = os.pread(file.fileno(), 32, 0).decode(errors="replace") or "unknown"
            raise ExperimentBusy(
                f"experiment {experiment_id} is held by process {holder}; det pause {experiment_id} asks it to stop"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot lock {path}: {error.strerror}; choose a home that you can write to") from error
        # A flock belongs to the open file, which a child made by a bare fork would share and so keep locked.
        reference = weakref.ref(file)

        def leave() -> None:
            if (held := reference()) is not None:
                held.close()

        os.register_at_fork(after_in_child=leave)
        undo.callback(_unlock, file)
        yield


def is_free(directory: Path) -> bool:
    """Tell whether nobody holds the lock of an experiment, or nobody ever did."""
    try:
        file = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def _wait(file: FileIO) -> None:
    deadline = time.monotonic() + _BRIEF_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _unlock(file: FileIO) -> None:
    """Unlock at once, though a child may not have closed its copy yet; in such a child it is closed, and the lock stays."""
    if not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)


_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs")
SEVERAL = "several-machines"
"""Lies in a home that is used from several machines, be it of a network file system here or not."""


def network_file_system(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system of a place, such as nfs4, where that is one of another machine; empty otherwise."""
    found, best = "", -1
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]))
        # Of two in one place the later one counts.
        if place.resolve().is_relative_to(point) and len(point.parts) >= best:
            found, best = after.split()[0], len(point.parts)
    return found if found in _REMOTE or found.partition(".")[0] == "fuse" else ""


def is_shared(directory: Path) -> bool:
    """Tell whether other machines may use what lies in a home, or in the directory of one of its experiments."""
    marked = ((each / SEVERAL).exists() for each in (directory, directory.parent.parent))
    return any(marked) or bool(network_file_system(directory))


@cache
def boot_id() -> str:
    """What tells this start of the machine from every other; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
