"""Paths that users give, and files that others may have replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

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


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises OSError if it is no regular file.

    Opening a fifo would wait for whoever writes to it.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(None, "it is no regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises OSError if it is no regular file."""
    with open_regular(path) as file:
        return file.read()
