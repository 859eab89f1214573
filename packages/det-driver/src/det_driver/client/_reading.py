"""Parts of logs and curves."""

from __future__ import annotations

from codecs import getincrementaldecoder
from pathlib import Path
from typing import NamedTuple

from det_core.support.paths import open_regular


class Series(NamedTuple):
    """A curve of `reports` reports: their positions and their values. NaN means no number."""

    reports: int
    x: list[float]
    y: list[float]


class LogPart(NamedTuple):
    """Lines of a log as text: the bytes from `offset` to `end` of a file of `size` bytes."""

    text: str
    offset: int
    end: int
    size: int


def read_log(file: Path, offset: int, limit: int) -> LogPart:
    """Return about `limit` bytes of a file from `offset`, which counts from the end if negative.

    The part consists of whole lines, unless one line is longer.
    """
    with open_regular(file) as log:
        size = log.seek(0, 2)
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        log.seek(max(0, start - 1))
        before, data = log.read(min(start, 1)), log.read(limit)
    # Skip the rest of a line that began before.
    if offset < 0 and before not in (b"", b"\n"):
        start, data = start + data.find(b"\n") + 1, data[data.find(b"\n") + 1 :]
    if start + len(data) < size and b"\n" in data:
        data = data[: data.rfind(b"\n") + 1]
    decoder = getincrementaldecoder("utf-8")("replace")
    # The last character may be written only in part yet. The decoder leaves it out.
    text = decoder.decode(data)
    return LogPart(text, start, start + len(data) - len(decoder.getstate()[0]), size)
