"""Local files: found, copied, and made to last."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DetError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NEARLY_FULL = 1 << 20


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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Wait until a directory and everything below it is on the disk, the content before the names."""
    for folder, _, names in os.walk(directory, topdown=False, onerror=_raise):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))


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


def _free(directory: Path) -> int:
    present = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return shutil.disk_usage(present).free


def readable(size: float) -> str:
    """Return a number of bytes as a person reads it: `512 B`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
