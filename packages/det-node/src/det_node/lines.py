"""Reads what a process writes to a pipe, in whole lines."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

_CHUNK = _LONGEST = 1 << 16
_QUIET_SECONDS = 1.0


def read_lines(pipe: int) -> Iterator[bytes]:
    """Yield what is written to a pipe until it is closed, each time one or more whole lines.

    A carriage return ends a line, too. An incomplete line is yielded after a second in which
    nothing was written, when it is longer than 64 KiB, or at the end. The second is counted only
    while the pipe is read, so a slow reader of the lines tears none apart.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    held = b""
    while True:
        if held and not poll.poll(_QUIET_SECONDS * 1000):
            yield held
            held = b""
        data = os.read(pipe, _CHUNK)
        held += data
        # A carriage return at the end may be the first half of a line's end.
        end = max(held.rfind(b"\n"), held.rfind(b"\r", 0, len(held) - 1)) + 1
        if not data or len(held) - end > _LONGEST:
            end = len(held)
        if end:
            yield held[:end]
            held = held[end:]
        if not data:
            return
