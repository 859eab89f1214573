"""The lock of an experiment, and the tests for a shared file system and for a reboot."""

from __future__ import annotations

import fcntl
import os
import re
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from io import FileIO
from pathlib import Path

from det_core.errors import ExperimentBusy, StoreError

GUARD = "index.lock"
"""The process that replaces a damaged index holds this lock."""
_BRIEF_SECONDS = 0.3
"""The time in which a process that tests the lock, or renames the experiment, has finished."""


@contextmanager
def experiment_lock(experiment_id: int, directory: Path) -> Iterator[None]:
    """Hold the lock of an experiment. The kernel releases it when the process dies in any way.

    Raises ExperimentBusy, which names the process that holds the lock, and StoreError if the lock
    file cannot be made.
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
                f"experiment {experiment_id} is held by process {holder}; det pause {experiment_id}"
                " asks it to stop"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot lock {path}: {error.strerror}; choose a home that you can write to"
            ) from error
        # A flock belongs to the open file. A child made by a bare fork would share the file and so
        # keep it locked.
        reference = weakref.ref(file)

        def leave() -> None:
            if (held := reference()) is not None:
                held.close()

        os.register_at_fork(after_in_child=leave)
        undo.callback(_unlock, file)
        yield


def is_free(directory: Path) -> bool:
    """Return whether no process holds the lock of an experiment."""
    try:
        # Without O_NONBLOCK, a fifo in its place waits until a process opens it to write.
        file = os.open(directory / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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


def check_locks(home: Path) -> None:
    """Raise StoreError if a home's file system has no locks.

    SQLite would report such a file as locked by another process. NFS has no locks without its lock
    service, and some FUSE file systems have none at all.
    """
    path = home / GUARD
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        # The next process that writes reports the error.
        return
    try:
        for lock in (fcntl.flock, fcntl.lockf):
            # A lock that another process holds shows that locks work.
            with suppress(BlockingIOError, PermissionError):
                lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                lock(file, fcntl.LOCK_UN)
    except OSError as error:
        kind = network_file_system(home)
        raise StoreError(
            f"cannot lock {path}: {error.strerror}; the file system of the"
            f" home{f' ({kind})' * bool(kind)} has no locks, which the store needs: mount it with"
            " locks (NFS: start its lock service, mount without nolock), or choose another home"
            " with DET_HOME"
        ) from error
    finally:
        os.close(file)


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
    """Unlock at once, even if a child has not closed its inherited copy yet.

    In such a child the file is closed already, and this leaves the parent's lock alone.
    """
    if not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)


_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs")
SEVERAL = "several-machines"
"""The name of a file that marks a home as used from several machines.

The home's file system need not be a network file system here.
"""


def network_file_system(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of a place's file system, such as nfs4, if another machine serves it.

    Returns an empty text otherwise.
    """
    found, best, whole = "", -1, f"{place.resolve()}/"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        # Of two mounts at one point the later one counts.
        if whole.startswith(f"{point.rstrip('/')}/") and len(point) >= best:
            found, best = after.split()[0], len(point)
    return found if found in _REMOTE or found.partition(".")[0] == "fuse" else ""


def is_shared(directory: Path) -> bool:
    """Return whether other machines may use a home, or the directory of one of its experiments."""
    marked = ((each / SEVERAL).exists() for each in (directory, directory.parent.parent))
    return any(marked) or bool(network_file_system(directory))


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine, or an empty text if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
