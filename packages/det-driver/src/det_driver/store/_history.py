"""The reports of a trial in order, from rows and from chunks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from det_core.train.metrics import number_or_none
from det_driver.store._chunks import Report, metric_of, pack, unpack, unpack_metric
from det_driver.store._database import Database
from det_driver.store._records import Metric
from det_driver.store._schema import dump, load_object

PAGE = 2000
CHUNK = 256
"""The number of reports of one group in a chunk. When a run has ended, FEW suffice."""
FEW = 8
_END = 2**63 - 1
_SPANS = 64


def pack_rows(database: Database, trial_id: int, kind: str, at_least: int) -> None:
    """Pack the rows of a trial's group into chunks of `at_least` reports or more.

    A new chunk covers later positions than all chunks before it.
    """
    newest = "SELECT max(last) FROM chunks WHERE trial_id = ? AND kind = ? AND archived = 0"
    ((after,),) = database.typed(tuple[int | None], newest, (trial_id, kind))
    rows = database.typed(
        tuple[int, int, float, str],
        "SELECT run_id, batches, time, data FROM metrics WHERE trial_id = ? AND archived = 0 AND"
        " batches > ? AND kind = ? ORDER BY batches",
        (trial_id, -1 if after is None else after, kind),
    )
    parts = [rows[start : start + CHUNK] for start in range(0, len(rows) - at_least + 1, CHUNK)]
    while parts:
        part = parts.pop(0)
        with database.decoding():
            reports = [
                Report(run, batches, at, load_object(data)) for run, batches, at, data in part
            ]
        packed = pack(reports)
        if packed is None and len(part) > 1:
            parts[:0] = part[: len(part) // 2], part[len(part) // 2 :]
            continue
        if packed is None:
            # This row and the later ones stay rows, as no chunk may follow a row.
            return
        first, last = reports[0].batches, reports[-1].batches
        database.run(
            "INSERT INTO chunks (trial_id, kind, first, last, count, data) VALUES (?, ?, ?, ?,"
            " ?, ?)",
            (trial_id, kind, first, last, len(reports), packed),
        )
        database.run(
            "DELETE FROM metrics WHERE trial_id = ? AND archived = 0 AND batches BETWEEN ? AND ?"
            " AND kind = ?",
            (trial_id, first, last, kind),
        )


def unpack_from(database: Database, trial_id: int, batches: int, kind: str | None = None) -> None:
    """Turn the chunks that reach a position or later ones into rows, so that they can change."""
    found = database.rows(
        "SELECT id, kind, data FROM chunks WHERE trial_id = :trial AND archived = 0 AND last >="
        " :batches AND (:kind IS NULL OR kind = :kind)",
        {"trial": trial_id, "batches": batches, "kind": kind},
    )
    for id, of_kind, data in found:
        with database.decoding():
            reports = [*unpack(data)]
        for report in reports:
            database.run(
                "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data) VALUES (?, ?, ?,"
                " ?, ?, ?)",
                (
                    trial_id,
                    report.run_id,
                    of_kind,
                    report.batches,
                    report.time,
                    dump(report.values),
                ),
            )
        database.run("DELETE FROM chunks WHERE id = ?", (id,))


def history(
    database: Database,
    trial_id: int,
    group: str | None,
    archived: bool,
    first: int,
    last: int | None,
) -> Iterator[Metric]:
    """Stream the reports between two positions, both included, by position and group.

    Each page is read in one transaction.
    """
    after, end = first - 1, _END if last is None else last
    while after < end:
        with database.transaction():
            found, after = _page(database, trial_id, group, archived, after, end)
        found.sort(key=lambda metric: (metric.batches, metric.group, metric.time))
        yield from found


def series(
    database: Database,
    trial_id: int,
    group: str,
    name: str,
    along: str,
    first: int,
    last: int | None,
) -> tuple[array[float], array[float]]:
    """Return the positions of a group's reports and their values of one metric.

    Chunks that overlap the range are returned whole.
    """
    key = {
        "trial": trial_id,
        "group": group,
        "after": first - 1,
        "last": _END if last is None else last,
    }
    such = "trial_id = :trial AND archived = 0 AND kind = :group"
    with database.transaction():
        chunks = database.rows(_CHUNKS.format(columns="data", such=such, limit=-1), key)
        rows = database.rows(_ROWS.format(such=such, limit=-1), key)
    xs: array[float] = array("q" if along == "batches" else "d")
    ys = array("d")
    with database.decoding():
        parts = [unpack_metric(data, name, along) for (data,) in chunks]
        parts += [
            metric_of(
                (Report(run, at, time, load_object(data)) for run, _, at, time, data in rows),
                name,
                along,
            )
        ]
        for x, y in parts:
            xs.extend(_numbers(x, xs.typecode))
            ys.extend(_numbers(y, "d"))
    return xs, ys


def _numbers(values: Sequence[Any], kind: str) -> array[float]:
    if isinstance(values, array) or kind == "q":
        return (
            values if isinstance(values, array) and values.typecode == kind else array(kind, values)
        )
    return array(
        "d", (math.nan if (number := number_or_none(value)) is None else number for value in values)
    )


def _page(
    database: Database, trial_id: int, group: str | None, archived: bool, after: int, last: int
) -> tuple[list[Metric], int]:
    """Return all reports after `after` up to some position, and that position."""
    such = (
        f"trial_id = :trial AND archived {'>' if archived else '='} 0"
        f" {'AND kind = :group' if group else ''}"
    )
    key: dict[str, Any] = {"trial": trial_id, "group": group, "after": after, "last": last}
    rows = database.typed(_Row, _ROWS.format(such=such, limit=PAGE), key)
    spans = database.typed(
        tuple[int, int], _CHUNKS.format(columns="first, last", such=such, limit=_SPANS), key
    )
    # There may be more at the last position.
    if len(rows) == PAGE:
        last = rows[-1][2] - 1
    if len(spans) == _SPANS:
        last = min(last, spans[-1][0] - 1)
    # One position has more reports than a page.
    if last <= after:
        last = after + 1
        rows = database.typed(_Row, _ROWS.format(such=such, limit=-1), key | {"last": last})
    sql = _CHUNKS.format(columns="kind, data", such=such, limit=-1)
    chunks = database.typed(tuple[str, bytes], sql, key | {"last": last})
    with database.decoding():
        found = [
            Metric(trial_id, run_id, kind, batches, at, load_object(data), archived)
            for run_id, kind, batches, at, data in rows
            if batches <= last
        ]
        for kind, data in chunks:
            reports = (report for report in unpack(data) if after < report.batches <= last)
            found += [
                Metric(trial_id, r.run_id, kind, r.batches, r.time, r.values, archived)
                for r in reports
            ]
    return found, last


_Row: Any = tuple[int, str, int, float, str]
_ROWS = """
SELECT run_id, kind, batches, time, data FROM metrics
WHERE {such} AND batches > :after AND batches <= :last
ORDER BY batches LIMIT {limit}
"""

_CHUNKS = (
    "SELECT {columns} FROM chunks WHERE {such} AND last > :after AND first <= :last ORDER BY first"
    " LIMIT {limit}"
)
