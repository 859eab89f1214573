"""Compare two trainings and find the first difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ._spec import Seen, Tensor

History = Sequence[tuple[str, int, Mapping[str, Any]]]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference: `what` is data, training, validation or weights.

    `batches` is the position from the trial's start.
    """

    what: str
    batches: int
    name: str = ""
    before: Any = None
    now: Any = None

    def __str__(self) -> str:
        if self.what == "data":
            return (
                "the data differs first in batch"
                f" {self.batches}{f' of {self.name}' if self.name else ''}"
            )
        if self.what == "weights":
            by = "" if self.now is None else f", by {self.now:.3g} at most"
            return f"the weights differ first at batch {self.batches}, in {self.name}{by}"
        return (
            f"{self.what} differs first at batch {self.batches}: {self.name} was {self.before} and"
            f" is {self.now}"
        )


def of_reports(before: History, now: History, tolerance: float) -> tuple[Difference | None, int]:
    """Return the first report that differs, and the number of compared reports.

    A training report is the mean since the one before. It is compared if both means begin at the
    same position.
    """
    began, count = _began(now), 0
    mine = {(group, batches): values for group, batches, values in now}
    for (group, batches), (start, values) in _began(before).items():
        if (group, batches) not in mine or (
            group != "validation" and began[group, batches][0] != start
        ):
            continue
        count += 1
        for name, value in values.items():
            here = mine[group, batches].get(name)
            if not equal(value, here, tolerance):
                return (
                    Difference(what=group, batches=batches, name=name, before=value, now=here),
                    count,
                )
    return None, count


def of_replays(before: Seen, now: Seen, tolerance: float, last: int) -> Difference | None:
    """Return the first difference of two replays: in data, numbers, reports or weights.

    The second replay may have begun later.
    """
    for number in sorted(before.data.keys() & now.data.keys()):
        mine, theirs = before.data[number], now.data[number]
        if number < last and mine != theirs:
            rank = next(
                (
                    n
                    for n, (one, other) in enumerate(zip(mine, theirs, strict=False))
                    if one != other
                ),
                0,
            )
            return Difference(
                what="data", batches=number, name=f"rank {rank}" if len(mine) > 1 else ""
            )
    reports, _ = of_reports(before.history, now.history, tolerance)
    late = max(0, len(before.rows) - len(now.rows))
    rows = zip(before.rows[late:], now.rows, strict=False)
    for (place, values), (_, others) in rows:
        for name, value in values.items():
            if not equal(value, others.get(name), tolerance):
                return Difference(
                    what="training", batches=place, name=name, before=value, now=others.get(name)
                )
    return reports or of_tensor(now.tensor)


def of_tensor(tensor: Tensor | None) -> Difference | None:
    """Return the difference of a tensor, if there is one."""
    if tensor is None:
        return None
    return Difference(what="weights", batches=tensor.batches, name=tensor.name, now=tensor.by)


def equal(before: Any, now: Any, tolerance: float) -> bool:
    """Return whether two values are equal within the tolerance. NaN equals NaN."""
    if isinstance(before, int | float) and isinstance(now, int | float):
        return (
            before == now
            or abs(before - now) <= tolerance
            or (math.isnan(before) and math.isnan(now))
        )
    return bool(before == now) or repr(before).strip("'") == repr(now).strip("'")


def _began(history: History) -> dict[tuple[str, int], tuple[int, Mapping[str, Any]]]:
    """Return the values of each report, with the position of the previous report of its group."""
    last: dict[str, int] = {}
    found = {}
    for group, batches, values in sorted(history, key=lambda report: report[1]):
        found[group, batches] = (last.get(group, 0), values)
        last[group] = batches
    return found
