"""Waits until something is written in a few directories: by inotify where there is one, for a while where there is none."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# From <sys/inotify.h>: modified, moved there, created, deleted.
_WHAT = 0x2 | 0x80 | 0x100 | 0x200
_BYTES = 1 << 16


class Wake:
    """For one thread, which closes it in the end. Of what another host writes to a directory that is shared nothing is heard."""

    def __init__(self) -> None:
        self._watched: dict[Path, int] = {}
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def hears(self) -> bool:
        """Whether it is told of what is written."""
        return bool(self._watched)

    def watch(self, directories: Iterable[Path]) -> None:
        """Hear of these directories, and of no others; of those that are not there nothing is heard."""
        if self._fd < 0:
            return
        wanted = set(directories)
        for gone in self._watched.keys() - wanted:
            self._libc.inotify_rm_watch(self._fd, self._watched.pop(gone))
        for each in wanted - self._watched.keys():
            if (number := self._libc.inotify_add_watch(self._fd, os.fsencode(each), _WHAT)) >= 0:
                self._watched[each] = number

    def wait(self, seconds: float) -> bool:
        """Return whether something was written, as soon as that was, or after so many seconds."""
        if self._fd < 0 or not self._watched:
            time.sleep(seconds)
            return False
        written = bool(select.select([self._fd], [], [], seconds)[0])
        with suppress(BlockingIOError):
            while written and len(os.read(self._fd, _BYTES)) > _BYTES // 2:
                continue
        return written

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
