"""Shows the output of ranks, and finds out which rank failed first.

The output goes to the terminal, where each line begins with its rank, or to one file per rank.
"""

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

from ..output import Unbreakable

_LINE_END = re.compile(rb"\r\n|\n|\r")
_TAIL = 1 << 16
_TRACEBACK = b"Traceback (most recent call last):"
_LAST_LINES = 10
_RECENT_SECONDS = 10.0


class Prefixed:
    """Writes lines of several ranks to one stream, with `[rank=1] ` before each line.

    A carriage return ends a line, too. What is written without a line's end is shown as a line.
    Without prefix, no byte is changed. A stream that cannot be written to, such as a pipe whose
    reader has left, ends no rank.
    """

    def __init__(self, stream: BinaryIO, *, prefix: bool = True) -> None:
        self._stream, self._prefix = Unbreakable(stream), prefix

    @property
    def failure(self) -> str:
        """Why output was lost. Empty where the reader has closed the stream."""
        return self._stream.failure

    def write(self, rank: int, data: bytes) -> None:
        """Write one or more lines of a rank, as `det_node.lines.read_lines` yields them."""
        self._stream.write(_with_rank(rank, data) if self._prefix else data)
        self._stream.flush()


def _with_rank(rank: int, data: bytes) -> bytes:
    head = b"[rank=%d] " % rank
    at, shown = 0, []
    for end in _LINE_END.finditer(data):
        # A progress bar begins each update with a carriage return.
        if end[0] != b"\r" or end.start() > at:
            shown.append(head + data[at : end.end()])
        at = end.end()
    if rest := data[at:]:
        shown.append(head + rest + b"\n")
    return b"".join(shown)


class Files:
    """Writes what each rank wrote, unchanged, to `rank-K.log` in a directory.

    A full disk ends no rank. `failure` then says why output was lost.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, BinaryIO] = {}
        self.failure = ""

    def write(self, rank: int, data: bytes) -> None:
        if rank not in self._files:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._files[rank] = (self._directory / f"rank-{rank}.log").open("wb", buffering=0)
        try:
            self._files[rank].write(data)
        except OSError as error:
            self.failure = self.failure or error.strerror or str(error)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Tails:
    """The newest output of each rank, and when a rank that wrote a traceback began to fail."""

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
    """Return the last traceback in a process's output, or its last lines where there is none."""
    at = text.rfind(_TRACEBACK)
    lines = render_lines(text)[-_LAST_LINES:] if at < 0 else _whole(text, at)
    return b"\n".join(lines).decode(errors="backslashreplace")


def _whole(text: bytes, at: int) -> list[bytes]:
    """Return the traceback at a place, with the tracebacks that led to it.

    A line between two of them says that they belong together.
    """
    joined = (
        b"the direct cause of the following exception:\n\n",
        b"another exception occurred:\n\n",
    )
    while text[:at].endswith(joined):
        earlier = text.rfind(_TRACEBACK, 0, at)
        if earlier < 0:
            break
        at = earlier
    return render_lines(text[at:])


def render_lines(text: bytes) -> list[bytes]:
    """Return the lines of an output, each as it stood last: a progress bar redraws its line."""
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]


def say(sentence: str, words: str = "") -> None:
    """Print a message of det, and the output that it quotes."""
    with suppress(OSError):
        sys.stderr.write(f"det: {sentence}\n{words}{os.linesep if words else ''}")
        sys.stderr.flush()


class _Failure(NamedTuple):
    rank: int
    status: int
    since: float


class Failures:
    """The ranks that failed, each with the time when its failure began.

    That is when its last traceback began, or when it ended without a traceback. When a rank fails,
    others soon fail as a consequence and may end before it, but it was the first to write a
    traceback.
    """

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._found: list[_Failure] = []
        self._first_exit = 0.0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, rank: int, status: int, *, was_ended: bool) -> None:
        """Store a rank's exit status.

        A rank that its launcher ended has failed only where it has just written a traceback.
        """
        self._first_exit = self._first_exit or time.monotonic()
        since = self._tails.failing_since.get(rank, 0.0)
        # The rank survived the error of an older traceback.
        failing = since > self._first_exit - _RECENT_SECONDS
        if not was_ended:
            self._found.append(_Failure(rank, status, since if failing else time.monotonic()))
        elif failing:
            self._found.append(_Failure(rank, max(1, status), since))

    def report(self, *, size: int, passed_on: Collection[int]) -> int:
        """Print which rank failed first, and return the exit status.

        A rank that was ended by a forwarded signal did not fail.
        """
        # No process sends SIGKILL to itself. The other ranks found that one gone, and may have
        # reported it earlier.
        first = min(
            self._found, key=lambda failure: (failure.status != -signal.SIGKILL, failure.since)
        )
        if -first.status not in passed_on:
            how = (
                f"was ended by {_named(-first.status)}"
                if first.status < 0
                else f"failed with status {first.status}"
            )
            words = self._tails.last_words(first.rank)
            others = " first; the others were ended" if size > 1 else ""
            say(f"rank {first.rank} {how}{others}.{' Its last words:' if words else ''}", words)
        return 128 - first.status if first.status < 0 else first.status


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
