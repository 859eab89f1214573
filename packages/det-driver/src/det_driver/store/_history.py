"""The reports of a trial in order, whether they lie in rows or packed in chunks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from det_core.metrics import number_or_none
from det_driver.store._chunks import Report, metric_of, pack, unpack, unpack_metric
from det_driver.store._database import Database
from det_driver.store._records import Metric
from det_driver.store._schema import dump, load

PAGE = 2000
CHUNK = 256
"""So many reports of one group are packed together, and FEW at least when a run has ended."""
FEW = 8
_END = 2**63 - 1
_SPANS = 64


def pack_rows(database: Database, trial_id: int, kind: str, at_least: int) -> None:
    """Pack the rows of a trial's group, so many at least together; a chunk lies behind all that were packed before it."""
    newest = "SELECT max(last) FROM chunks WHERE trial_id = ? AND kind = ? AND archived = 0"
    after = database.rows(newest, (trial_id, kind))[0][0]
    rows = database.rows(
        "SELECT run_id, batches, time, data FROM metrics WHERE trial_id = ? AND archived = 0 AND batches > ? AND kind = ? "
        "ORDER BY batches",
        (trial_id, -1 if after is None else after, kind),
    )
    for start in range(0, len(rows) - at_least + 1, CHUNK):
        reports = [Report(run, batches, at, load(data)) for run, batches, at, data in rows[start : start + CHUNK]]
        first, last = reports[0].batches, reports[-1].batches
        database.run(
            "INSERT INTO chunks (trial_id, kind, first, last, count, data) VALUES (?, ?, ?, ?, ?, ?)",
            (trial_id, kind, first, last, len(reports), pack(reports)),
        )
        database.run(
            "DELETE FROM metrics WHERE trial_id = ? AND archived = 0 AND batches BETWEEN ? AND ? AND kind = ?",
            (trial_id, first, last, kind),
        )


def unpack_from(database: Database, trial_id: int, batches: int, kind: str | None = None) -> None:
    """Make rows again of the chunks that reach a position: something there, or behind it, is to change."""
    found = database.rows(
        "SELECT id, kind, data FROM chunks WHERE trial_id = :trial AND archived = 0 AND last >= :batches "
        "AND (:kind IS NULL OR kind = :kind)",
        {"trial": trial_id, "batches": batches, "kind": kind},
    )
    for id, of_kind, data in found:
        for report in unpack(data):
            database.run(
                "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data) VALUES (?, ?, ?, ?, ?, ?)",
                (trial_id, report.run_id, of_kind, report.batches, report.time, dump(report.values)),
            )
        database.run("DELETE FROM chunks WHERE id = ?", (id,))


def history(
    database: Database, trial_id: int, group: str | None, archived: bool, first: int, last: int | None
) -> Iterator[Metric]:
    """Stream the reports from one position to another, both included, by position and group, from pages that are each whole."""
    after, end = first - 1, _END if last is None else last
    while after < end:
        with database.transaction():
            found, after = _page(database, trial_id, group, archived, after, end)
        found.sort(key=lambda metric: (metric.batches, metric.group, metric.time))
        yield from found


def series(
    database: Database, trial_id: int, group: str, name: str, along: str, first: int, last: int | None
) -> tuple[array[float], array[float]]:
    """Return where the reports of a group stand, and their values of one metric; chunks that reach into the range are whole."""
    key = {"trial": trial_id, "group": group, "after": first - 1, "last": _END if last is None else last}
    such = "trial_id = :trial AND archived = 0 AND kind = :group"
    with database.transaction():
        chunks = database.rows(_CHUNKS.format(columns="data", such=such, limit=-1), key)
        rows = database.rows(_ROWS.format(such=such, limit=-1), key)
    parts = [unpack_metric(data, name, along) for (data,) in chunks]
    parts += [metric_of((Report(run, at, time, load(data)) for run, _, at, time, data in rows), name, along)]
    xs: array[float] = array("q" if along == "batches" else "d")
    ys = array("d")
    for x, y in parts:
        xs.extend(_numbers(x, xs.typecode))
        ys.extend(_numbers(y, "d"))
    return xs, ys


def _numbers(values: Sequence[Any], kind: str) -> array[float]:
    if isinstance(values, array) or kind == "q":
        return values if isinstance(values, array) and values.typecode == kind else array(kind, values)
    return array("d", (math.nan if (number := number_or_none(value)) is None else number for value in values))


def _page(
    database: Database, trial_id: int, group: str | None, archived: bool, after: int, last: int
) -> tuple[list[Metric], int]:
    """Return all reports behind `after` up to a position, and that."""
    such = f"trial_id = :trial AND archived {'>' if archived else '='} 0 {'AND kind = :group' if group else ''}"
    key: dict[str, Any] = {"trial": trial_id, "group": group, "after": after, "last": last}
    rows = database.rows(_ROWS.format(such=such, limit=PAGE), key)
    spans = database.rows(_CHUNKS.format(columns="first, last", such=such, limit=_SPANS), key)
    if len(rows) == PAGE:  # there may be more at its last position
        last = rows[-1][2] - 1
    if len(spans) == _SPANS:
        last = min(last, spans[-1][0] - 1)
    if last <= after:  # a great many at one position
        last = after + 1
        rows = database.rows(_ROWS.format(such=such, limit=-1), key | {"last": last})
    chunks = database.rows(_CHUNKS.format(columns="kind, data", such=such, limit=-1), key | {"last": last})
    found = [
        Metric(trial_id, run_id, kind, batches, at, load(data), archived)
        for run_id, kind, batches, at, data in rows
        if batches <= last
    ]
    for kind, data in chunks:
        reports = (report for report in unpack(data) if after < report.batches <= last)
        found += [Metric(trial_id, r.run_id, kind, r.batches, r.time, r.values, archived) for r in reports]
    return found, last


_ROWS = """
SELECT run_id, kind, batches, time, data FROM metrics WHERE {such} AND batches > :after AND batches <= :last
ORDER BY batches LIMIT {limit}
"""

_CHUNKS = "SELECT {columns} FROM chunks WHERE {such} AND last > :after AND first <= :last ORDER BY first LIMIT {limit}"
