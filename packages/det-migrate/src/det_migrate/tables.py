"""Reads a CSV file whose rows are the values of runs at a step."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from det_core.errors import DetError
from det_driver.store import TrialState

from .others import OtherProject, OtherRun, Point, Record, typed


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold. Those that are not named hold metrics.

    Without `run` all rows are of one run, and without `step` they are numbered from 0.
    """

    run: str | None = None
    step: str | None = None
    time: str | None = None
    params: Sequence[str] = ()
    skip: Sequence[str] = ()

    @property
    def named(self) -> list[str]:
        """All columns that are named."""
        return [
            name
            for name in (self.run, self.step, self.time, *self.params, *self.skip)
            if name is not None
        ]


def find_csv(file: Path, columns: Columns) -> list[OtherProject]:
    """Return a CSV file as one project. Raises DetError where it lacks a column."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            there = next(csv.reader(lines), [])
        facts = file.stat()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DetError(f"cannot read {file}: {error}; name a CSV file in UTF-8") from error
    if not there:
        raise DetError(f"{file} is empty; its first line has to name the columns")
    for name in columns.named:
        if name not in there:
            raise DetError(f"{file} has no column {name!r}; it has {', '.join(there)}")
    if twice := [name for name, count in Counter(there).items() if count > 1]:
        raise DetError(f"{file} has several columns {twice[0]!r}; give each a name of its own")
    versions = {str(file.resolve()): f"{facts.st_size} {facts.st_mtime_ns}"}
    return [OtherProject("CSV", file.stem, versions, partial(_records, file, columns))]


def _records(file: Path, columns: Columns) -> Iterator[Record]:
    params: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    named = set(columns.named)
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines)
            metrics = [name for name in rows.fieldnames or () if name not in named]
            for row in rows:
                if None in row:
                    raise DetError(f"{file}, line {rows.line_num}: more cells than columns")
                run = (row[columns.run] if columns.run else None) or file.stem
                own = params.setdefault(run, {})
                own |= {name: typed(row[name]) for name in columns.params if row[name]}
                step = _number(row[columns.step]) if columns.step else counts[run]
                if step is None:
                    text = row[columns.step or ""]
                    raise DetError(
                        f"{file}, line {rows.line_num}: {text!r} in {columns.step} is no step"
                    )
                try:
                    time = _time(row[columns.time]) if columns.time else None
                except ValueError as error:
                    raise DetError(f"{file}, line {rows.line_num}: {error}") from None
                counts[run] += 1
                for name in metrics:
                    if row[name]:
                        yield Point(run, name, step, time, _number(row[name]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DetError(f"{file}, after line {rows.line_num}: {error}") from error
    for run, own in params.items():
        yield OtherRun(run, run, TrialState.COMPLETED, hparams=own)


def _time(text: str | None) -> float | None:
    """Return Unix seconds, from those or from a date and time, in UTC where it has no zone."""
    if not text:
        return None
    with suppress(ValueError):
        return float(text)
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
