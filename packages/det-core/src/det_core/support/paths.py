"""Paths that users give, and files that others may have replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from ..errors import DetError


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with the directory that a leading `~` or `~user` stands for.

    Raises DetError if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DetError(
            f"cannot resolve {os.fspath(path)!r}: there is no such user; write it without ~"
        ) from None


class NotRegularFile(OSError):
    """Something else is in place of a file: a directory, a fifo, a socket or a device."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises NotRegularFile if it is something else.

    An ordinary `open` of a fifo waits until a process opens it to write.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise NotRegularFile(None, "it is no regular file", str(path))
    return os.fdopen(opened, "rb")


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises NotRegularFile if it is something else."""
    with open_regular(path) as file:
        return file.read()


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by one of other content and the same mode, which may be read-only."""
    part = path.with_name(f".det-{uuid4().hex}")
    part.write_bytes(data)
    part.chmod(stat.S_IMODE(path.stat().st_mode))
    part.replace(path)
