"""What a trial reported and wrote, of which no more is read than is asked for."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from det_core.errors import StoreError

from ..store import Metric, TrialRow
from ._checkpoint import Home


class Series(NamedTuple):
    """A curve made of so many reports: where they stand, and their values (NaN: no number)."""

    reports: int
    x: list[float]
    y: list[float]


class LogPart(NamedTuple):
    """Lines of a log: the bytes from `offset` to `end` of a file of `size` bytes, as text."""

    text: str
    offset: int
    end: int
    size: int


class TrialReports:
    """One trial's metrics and logs."""

    def __init__(self, home: Home, row: TrialRow) -> None:
        self._home = home
        self.id = row.id

    def iter_metrics(self, group: str | None = None) -> Iterator[Metric]:
        """Yield what it reported, in order, of one group (`training`, `validation`, …) or of all."""
        with self._home.reader() as store:
            yield from store.metrics.read(trial_id=self.id, group=group)

    def series(
        self,
        metric: str,
        group: str = "training",
        width: int = 1000,
        range: tuple[float, float] | None = None,
        by: Literal["batches", "epochs", "seconds"] = "batches",
    ) -> Series:
        """Return one metric as a curve of at most 2 `width` + 2 points, in a range of `by`.

        Of each of `width` parts of equal length the least and the greatest value are kept, and the first and the last of all.
        Epochs are those that were reported, seconds count from the trial's start.
        """
        first, last = (max(0, int(range[0])), int(range[1])) if range is not None and by == "batches" else (0, None)
        along = "time" if by == "seconds" else by
        with self._home.reader() as store:
            xs, ys = store.metrics.series(self.id, group, metric, along=along, first=first, last=last)
            began = store.trials.get(self.id).started if by == "seconds" else None
        if began is not None:
            xs = array("d", (x - began for x in xs))
        if range is not None:
            start, end = bisect_left(xs, range[0]), bisect_right(xs, range[1])
            xs, ys = xs[start:end], ys[start:end]
        if len(xs) <= 2 * width + 2:
            return Series(len(xs), [*xs], [*ys])
        kept = sorted({0, len(xs) - 1, *_extremes(xs, ys, width)})
        return Series(len(xs), [xs[i] for i in kept], [ys[i] for i in kept])

    def logs(self) -> Iterator[str]:
        """Yield the lines that its processes wrote, run by run, rank by rank."""
        for file in (file for ranks in self.log_files().values() for file in ranks.values()):
            with file.open(errors="replace") as lines:
                yield from lines

    def log_files(self) -> dict[int, dict[int, Path]]:
        """Return the logs that there are, for each run by its number (from 1) those of its ranks."""
        with self._home.reader() as store:
            runs = store.runs.list(self.id)
        found = {run.number: {int(f.stem[5:]): f for f in run.log_dir.glob("rank-*.log")} for run in runs}
        return {number: dict(sorted(ranks.items())) for number, ranks in found.items()}

    def log(self, rank: int = 0, offset: int = 0, *, run: int | None = None, limit: int = 65536) -> LogPart:
        """Return about `limit` bytes of what a rank wrote in a run, by default the last one, in whole lines.

        They begin at the byte `offset`; a negative one counts from the end. Nothing before it has written.
        """
        files = self.log_files()
        number = run if run is not None else max(files, default=1)
        if rank not in files.get(number, ()):
            raise StoreError(
                f"run {number} of trial {self.id} has no log of rank {rank}; log_files() has those there are"
            )
        return read_log(files[number][rank], offset, limit)


def read_log(file: Path, offset: int, limit: int) -> LogPart:
    """Return about `limit` bytes of a file, in whole lines unless one is longer, from `offset`, or counted from the end."""
    with file.open("rb") as log:
        size = log.seek(0, 2)
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        log.seek(max(0, start - 1))
        before, data = log.read(min(start, 1)), log.read(limit)
    if offset < 0 and before not in (b"", b"\n"):  # behind the rest of a line
        start, data = start + data.find(b"\n") + 1, data[data.find(b"\n") + 1 :]
    if start + len(data) < size and b"\n" in data:
        data = data[: data.rfind(b"\n") + 1]
    decoder = getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)  # without the beginning of a character that is being written
    return LogPart(text, start, start + len(data) - len(decoder.getstate()[0]), size)


def _extremes(xs: array[float], ys: array[float], width: int) -> Iterator[int]:
    start, low, step = 0, xs[0], (xs[-1] - xs[0]) / width
    for part in range(1, width + 1):
        end = bisect_left(xs, low + part * step, start) if part < width else len(xs)
        values = ys[start:end]
        if values and math.isnan(values[0]):  # which nothing is less than
            values = array("d", (value for value in values if not math.isnan(value))) or values
        for value in {min(values), max(values)} if values else ():
            yield start if math.isnan(value) else ys.index(value, start)
        start = end
