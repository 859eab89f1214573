"""Files in local directories, and staging directories that their writers lock.

The kernel releases the lock however the writer ends. That tells what a killed process left from
what a slow process still writes. On a file system without locks, or with locks for each host alone,
the age of the files decides.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DetError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AWAY = {errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN}
_NEARLY_FULL = 1 << 20
_SMALL = 1 << 20


def sizes(directory: Path) -> dict[str, int]:
    """Return the relative posix names and sizes of the files below `directory`, sorted by name."""
    found = {}
    for folder, _, names in os.walk(directory, onerror=_raise):
        for name in names:
            path = Path(folder, name)
            found[path.relative_to(directory).as_posix()] = path.stat().st_size
    return dict(sorted(found.items()))


def _raise(error: OSError) -> None:
    raise error


def copy(source: Path, target: Path) -> None:
    """Copy a file's content and make the directories above it. On return it is on the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    sync(target)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    _open_to(os.fsync, path)


def _begin_to_write(descriptor: int) -> None:
    """Start writing the first MiB of a file to the disk, without waiting.

    The kernel may then drop these pages from its cache, so the rest of a large file is left alone.
    """
    os.posix_fadvise(descriptor, 0, _SMALL, os.POSIX_FADV_DONTNEED)


def _open_to(act: Callable[[int], object], path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Wait until a directory and everything below it is on the disk, files before directories."""
    folders = list(os.walk(directory, topdown=False, onerror=_raise))
    files = [os.path.join(folder, name) for folder, _, names in folders for name in names]
    for file in files:
        # Writing starts for all files before any is waited for.
        _open_to(_begin_to_write, file)
    for path in (*files, *(folder for folder, _, _ in folders)):
        _open_to(os.fsync, path)


@contextmanager
def room(uuid: str, directory: Path) -> Iterator[None]:
    """Raise StorageError with a sentence if the body runs out of disk space.

    Frameworks report it in their own ways (torch: a RuntimeError about a stream). So any such error
    on a full disk is taken for this one. The original is its cause.
    """
    try:
        yield
    except DetError:
        raise
    except (OSError, RuntimeError) as error:
        free = shutil.disk_usage(
            next(path for path in (directory, *directory.absolute().parents) if path.exists())
        ).free
        number = error.errno if isinstance(error, OSError) else None
        if number not in _FULL and (number is not None or free >= _NEARLY_FULL):
            raise
        reason = os.strerror(number) if number in _FULL else os.strerror(errno.ENOSPC)
        raise StorageError(
            f"cannot write checkpoint {uuid} to {directory}: {reason}, {readable(free)} free; "
            "make room there, or name another place in checkpoint_storage"
        ) from error


def is_outage(error: BaseException | None, directory: Path) -> bool:
    """Return whether an error or a cause of it says that the file system of `directory` is away."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _AWAY:
            place = error.filename
            return not isinstance(place, str) or Path(place).is_relative_to(directory)
        error = error.__cause__ or error.__context__
    return False


def readable(size: float) -> str:
    """Return a number of bytes for a person to read: `512 B`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


STAGING = ".staging"
"""The directory of checkpoints that are being written or deleted.

It is apart from the others, so that listing it is fast however many there are.
"""
_WRITING, _DELETING = "writing-", "deleting-"
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_HOUR = 3600.0


def staged(root: Path, uuid: str) -> Path | None:
    """Return the directory in which `uuid` is being filled, by any host, or None."""
    return next(iter(_apart(root, f"{_WRITING}{uuid}@")), None)


def _apart(root: Path, beginning: str) -> list[Path]:
    """Return the paths in the staging directory whose names begin so.

    They may vanish at any time.
    """
    with suppress(FileNotFoundError):
        return [
            root / STAGING / name
            for name in os.listdir(root / STAGING)
            if name.startswith(beginning)
        ]
    return []


def claim(root: Path, uuid: str) -> tuple[Path, int]:
    """Make the empty, locked directory for `uuid`. Return it with the descriptor of the lock.

    Raises BlockingIOError if a living process is writing it.
    """
    path = root / STAGING / f"{_WRITING}{uuid}@{_host()}"
    while True:
        if (other := staged(root, uuid)) and not sweep_one(root, other):
            raise BlockingIOError(
                errno.EWOULDBLOCK, "is being written by another process", str(other)
            )
        with suppress(FileExistsError, FileNotFoundError):
            _set_apart(root)
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(path, descriptor):
                return path, descriptor
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether no sweep removed the directory between its opening and its locking."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def discard(root: Path, path: Path) -> None:
    """Remove a directory in `root`. It is renamed first, so that nobody sees a part of it."""
    doomed = root / STAGING / f"{_DELETING}{path.name}-{os.urandom(4).hex()}"
    while path.exists():
        # The path or the staging directory may be gone, as another process has tidied up.
        with suppress(FileNotFoundError):
            _set_apart(root)
            path.rename(doomed)
            # From now on, a directory of this name belongs to a new writer.
            break
    shutil.rmtree(doomed, ignore_errors=True)
    tidy(root)


def _set_apart(root: Path) -> None:
    """Make the staging directory. If another process removes it again, the next step fails."""
    # With `exist_ok`, pathlib raises if the directory vanishes before it has looked at it.
    with suppress(FileExistsError):
        (root / STAGING).mkdir()


def tidy(root: Path) -> None:
    """Remove the staging directory if it is empty."""
    with suppress(OSError):
        (root / STAGING).rmdir()


def sweep(root: Path) -> None:
    """Remove what dead writers and interrupted deletions left in `root`."""
    for path in _apart(root, ""):
        if path.name.startswith(_DELETING):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(_WRITING):
            sweep_one(root, path)


def sweep_one(root: Path, path: Path) -> bool:
    """Remove a directory whose writer is gone. Return whether the directory is gone now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if _is_abandoned(path, descriptor) and _is_still(path, descriptor):
            with suppress(OSError):
                discard(root, path)
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
    return _UNSAFE.sub("-", socket.gethostname())
