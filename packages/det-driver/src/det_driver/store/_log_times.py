"""The times of the lines of a log. A file next to each log records its length at certain times.

Processes write to their logs directly, without a reader. So the driver looks at the length of each
log now and then. The time of a line is the time of the first look that found it.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from det_core.support.paths import read_regular

_SUFFIX = ".times"


class LogClock:
    """Records the lengths of logs that have grown since the last look."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}

    def note(self, directories: Iterable[Path]) -> None:
        """Look at the logs in directories of runs.

        Files that cannot be read or written are skipped, as training continues.
        """
        for directory in directories:
            with suppress(OSError):
                for name in os.listdir(directory):
                    if name.startswith("rank-") and name.endswith(".log"):
                        self._note(directory / name)

    def forget(self, directory: Path) -> None:
        """Record a last time the lengths of the logs of a run that has ended."""
        self.note([directory])
        self._sizes = {log: size for log, size in self._sizes.items() if log.parent != directory}

    def _note(self, log: Path) -> None:
        size = log.stat().st_size
        if size != self._sizes.get(log, 0):
            self._sizes[log] = size
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(log.with_suffix(_SUFFIX), flags, 0o666), "a") as file:
                file.write(f"{size} {time.time():.0f}\n")


class LogTimes:
    """The times of one log that have been recorded so far."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._file = log.with_suffix(_SUFFIX)
        self._sizes: list[int] = []
        self._times: list[float] = []

    def read(self) -> None:
        """Read the records again."""
        with suppress(OSError, ValueError):
            pairs = [line.split() for line in read_regular(self._file).decode().splitlines()]
            whole = [(int(size), float(when)) for size, when in (p for p in pairs if len(p) == 2)]
            self._sizes, self._times = [size for size, _ in whole], [when for _, when in whole]

    def at(self, offset: int) -> float | None:
        """Return the first recorded time at which the log was longer than `offset`.

        After the last record this is the log's modification time. Returns None without any record.
        """
        index = bisect_left(self._sizes, offset + 1)
        if index < len(self._times):
            return self._times[index]
        with suppress(OSError):
            return self._log.stat().st_mtime if self._times else None
        return None
