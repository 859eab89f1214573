"""Directories that are being filled: hidden, and locked by their writer for as long as it lives.

The kernel drops the lock however the writer ends, so that what a killed process left behind is told from what a slow
one is still writing. Where a filesystem keeps no locks, or keeps them for each host alone, age decides.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

_WRITING = ".writing-"
_DELETING = ".deleting-"
_HOUR = 3600.0


def staged(root: Path, uuid: str) -> Path | None:
    """Return the directory in which `uuid` is being filled, from whichever host."""
    return next(root.glob(f"{_WRITING}{uuid}@*"), None)


def claim(root: Path, uuid: str) -> tuple[Path, int]:
    """Make the directory for `uuid`, empty and locked, and return it with the descriptor that holds the lock.

    BlockingIOError says that a living process is writing it.
    """
    path = root / f"{_WRITING}{uuid}@{_host()}"
    while True:
        if (other := staged(root, uuid)) and not sweep_one(other):
            raise BlockingIOError(errno.EWOULDBLOCK, "is being written by another process", str(other))
        with suppress(FileExistsError, FileNotFoundError):
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                return path, descriptor
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Say whether no sweep took the directory between its making and its locking."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def discard(path: Path) -> None:
    """Remove a directory so that no moment shows a part of it under its own name."""
    doomed = path.with_name(f"{_DELETING}{path.name.lstrip('.')}-{os.urandom(4).hex()}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what dead writers and interrupted deletions left in `root`."""
    for path in root.glob(f"{_DELETING}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f"{_WRITING}*"):
        sweep_one(path)


def sweep_one(path: Path) -> bool:
    """Remove a directory whose writer is gone, and say whether it is gone now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _is_abandoned(path, descriptor):
            return False
        with suppress(OSError):
            discard(path)
        return not path.exists()
    finally:
        os.close(descriptor)


def _is_abandoned(path: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locks = True
    except BlockingIOError:
        return False
    except OSError:
        locks = False
    if locks and path.name.endswith(f"@{_host()}"):
        return True
    return time.time() - _last_change(path) > _HOUR


def _last_change(directory: Path) -> float:
    newest = 0.0
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            with suppress(FileNotFoundError):
                newest = max(newest, path.stat().st_mtime)
    return newest


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
