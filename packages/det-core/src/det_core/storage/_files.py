"""Local directories: files that are found, copied and made to last; and those being filled, set apart, and locked by their writer.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DetError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
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
    """Copy a file's content, making the directories above it; on return it is on the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    sync(target)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    _open_to(os.fsync, path)


def _begin_to_write(descriptor: int) -> None:
    """Have a small file written without waiting for it; of a large one, only the beginning is, as the kernel may forget it then."""
    os.posix_fadvise(descriptor, 0, _SMALL, os.POSIX_FADV_DONTNEED)


def _open_to(act: Callable[[int], object], path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Wait until a directory and everything below it is on the disk, the content before the names."""
    folders = list(os.walk(directory, topdown=False, onerror=_raise))
    files = [os.path.join(folder, name) for folder, _, names in folders for name in names]
    for file in files:
        _open_to(_begin_to_write, file)  # so that they are waited for together
    for path in (*files, *(folder for folder, _, _ in folders)):
        _open_to(os.fsync, path)


@contextmanager
def room(uuid: str, directory: Path) -> Iterator[None]:
    """Turn running out of disk into a sentence.

    Frameworks report it in ways of their own (torch: a RuntimeError about a stream), so that an error on a disk that is
    full to the last megabyte is taken for this one; the original stays attached.
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


def readable(size: float) -> str:
    """Return a number of bytes as a person reads it: `512 B`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


STAGING = ".staging"
"""The directory of what is not there yet, or no longer: looking through it costs nothing, however much lies beside it."""
_WRITING, _DELETING = "writing-", "deleting-"
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_HOUR = 3600.0


def staged(root: Path, uuid: str) -> Path | None:
    """Return the directory in which `uuid` is being filled, from whichever host."""
    return next(iter(_apart(root, f"{_WRITING}{uuid}@")), None)


def _apart(root: Path, beginning: str) -> list[Path]:
    """Return what is in the directory apart under names that begin so; another process may remove that at any time."""
    with suppress(FileNotFoundError):
        return [root / STAGING / name for name in os.listdir(root / STAGING) if name.startswith(beginning)]
    return []


def claim(root: Path, uuid: str) -> tuple[Path, int]:
    """Make the directory for `uuid`, empty and locked, and return it with the descriptor that holds the lock.

    BlockingIOError says that a living process is writing it.
    """
    path = root / STAGING / f"{_WRITING}{uuid}@{_host()}"
    while True:
        if (other := staged(root, uuid)) and not sweep_one(root, other):
            raise BlockingIOError(errno.EWOULDBLOCK, "is being written by another process", str(other))
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
    """Say whether no sweep took the directory between its opening and its locking."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def discard(root: Path, path: Path) -> None:
    """Remove a directory in `root` so that no moment shows a part of it under its own name."""
    doomed = root / STAGING / f"{_DELETING}{path.name}-{os.urandom(4).hex()}"
    while path.exists():
        with suppress(FileNotFoundError):  # the path, or the directory apart, as another process has tidied up
            _set_apart(root)
            path.rename(doomed)
            break  # what is there from now on is a new writer's
    shutil.rmtree(doomed, ignore_errors=True)
    tidy(root)


def _set_apart(root: Path) -> None:
    """Make the directory apart; where another process removes it again, what comes next finds out."""
    with suppress(FileExistsError):  # with `exist_ok` it is raised where that is gone before pathlib has looked at it
        (root / STAGING).mkdir()


def tidy(root: Path) -> None:
    """Remove the directory apart where nothing is in it."""
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
    """Remove a directory whose writer is gone, and say whether it is gone now."""
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
