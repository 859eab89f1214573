"""What the ranks write, for people: each line with its rank before it, or each in a file; and which failed first."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_LONGEST = 1 << 16
_QUIET_SECONDS = 1.0
_TAIL = 1 << 16
_TRACEBACK = b"Traceback (most recent call last):"
_LAST_LINES = 10
_RECENT_SECONDS = 10.0


class Prefixed:
    """Writes whole lines of several ranks to one stream, `[rank=1] ` before each; a carriage return ends a line, too.

    What a rank does not end is shown with an end after a second of quiet, or when it is very long. Without prefix, the
    lines are whole, too, but every byte is as it was written.
    """

    def __init__(self, stream: BinaryIO, *, prefix: bool = True) -> None:
        self._stream, self._prefix = stream, prefix
        self._open: dict[int, bytes] = {}
        self._since: dict[int, float] = {}

    def write(self, rank: int, data: bytes) -> None:
        data = self._open.pop(rank, b"") + data
        at, shown = 0, []
        for end in _LINE_END.finditer(data):
            # A bar begins each of its drawings with a return.
            if not self._prefix or end[0] != b"\r" or end.start() > at:
                shown.append(self._head(rank) + data[at : end.end()])
            at = end.end()
        self._put(b"".join(shown))
        if data[at:]:
            self._open[rank], self._since[rank] = data[at:], time.monotonic()
            if len(data) - at > _LONGEST:
                self._finish(rank)

    def show_quiet(self) -> float | None:
        """Show what has waited for its end long enough; return in how many seconds to look again."""
        now = time.monotonic()
        for rank in [rank for rank in self._open if now - self._since[rank] >= _QUIET_SECONDS]:
            self._finish(rank)
        return min((self._since[rank] + _QUIET_SECONDS - now for rank in self._open), default=None)

    def close(self) -> None:
        for rank in sorted(self._open):
            self._finish(rank)

    def _finish(self, rank: int) -> None:
        text = self._open.pop(rank)
        # A bar that is drawn again and again ends with the return that may be half of a line's end.
        self._put(self._head(rank) + text + (b"" if text.endswith(b"\r") or not self._prefix else b"\n"))

    def _head(self, rank: int) -> bytes:
        return b"[rank=%d] " % rank if self._prefix else b""

    def _put(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()


class Files:
    """Writes what each rank wrote, unchanged, to `rank-K.log` in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}

    def write(self, rank: int, data: bytes) -> None:
        if rank not in self._files:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._files[rank] = (self._directory / f"rank-{rank}.log").open("wb", buffering=0)
        self._files[rank].write(data)

    def show_quiet(self) -> float | None:
        return None

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Tails:
    """The last words of each rank, and since when each that wrote a traceback is failing."""

    def __init__(self) -> None:
        self.failing_since: dict[int, float] = {}
        self._tails: dict[int, bytes] = {}

    def write(self, rank: int, data: bytes) -> None:
        before = self._tails.get(rank, b"")
        if _TRACEBACK in before[-len(_TRACEBACK) :] + data:
            self.failing_since[rank] = time.monotonic()
        self._tails[rank] = (before + data)[-_TAIL:]

    def last_words(self, rank: int) -> str:
        """Return what a rank wrote last."""
        return last_words(self._tails.get(rank, b""))


def last_words(text: bytes) -> str:
    """Return the last traceback in what a process wrote, or the last lines where there is none."""
    at = text.rfind(_TRACEBACK)
    lines = text.splitlines()[-_LAST_LINES:] if at < 0 else _whole(text, at)
    return b"\n".join(lines).decode(errors="backslashreplace")


def _whole(text: bytes, at: int) -> list[bytes]:
    """Return the traceback at a place, with those that led to it: they are joined by a line that says so."""
    joined = (b"the direct cause of the following exception:\n\n", b"another exception occurred:\n\n")
    while text[:at].endswith(joined):
        earlier = text.rfind(_TRACEBACK, 0, at)
        if earlier < 0:
            break
        at = earlier
    return text[at:].splitlines()


def say(sentence: str, words: str = "") -> None:
    """Say what det itself has to say, and what it quotes."""
    with suppress(OSError):
        sys.stderr.write(f"det: {sentence}\n{words}{os.linesep if words else ''}")
        sys.stderr.flush()


class _Failure(NamedTuple):
    rank: int
    status: int
    since: float


class Failures:
    """The ranks that failed, each since its last traceback began or, where it wrote none, since it ended.

    When a rank fails, others soon fail of that, and may end before it does; but it was the first to say so.
    """

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._found: list[_Failure] = []
        self._first_exit = 0.0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, rank: int, status: int, *, was_ended: bool) -> None:
        """Take a rank's exit status. One that was ended by its launcher failed only where it has just said so."""
        self._first_exit = self._first_exit or time.monotonic()
        since = self._tails.failing_since.get(rank, 0.0)
        failing = since > self._first_exit - _RECENT_SECONDS  # an older traceback was of something that it survived
        if not was_ended:
            self._found.append(_Failure(rank, status, since if failing else time.monotonic()))
        elif failing:
            self._found.append(_Failure(rank, max(1, status), since))

    def report(self, *, size: int, passed_on: Collection[int]) -> int:
        """Say which rank failed first, and return the exit status; a rank that a passed-on signal ended did not fail."""
        # Nothing kills itself with SIGKILL: the others found that one gone, and may have said so before it was known.
        first = min(self._found, key=lambda failure: (failure.status != -signal.SIGKILL, failure.since))
        if -first.status not in passed_on:
            how = f"was ended by {_named(-first.status)}" if first.status < 0 else f"failed with status {first.status}"
            words = self._tails.last_words(first.rank)
            others = " first; the others were ended" if size > 1 else ""
            say(f"rank {first.rank} {how}{others}.{' Its last words:' if words else ''}", words)
        return 128 - first.status if first.status < 0 else first.status


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
