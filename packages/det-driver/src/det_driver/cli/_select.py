"""`--filter`, `--sort` and `--limit`: which rows of a table are shown, and in which order."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from det_core.errors import DetError, did_you_mean

Row = Mapping[str, Any]

_CONDITION = re.compile(r"\s*([^\s=!<>~]+)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

filtered = click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help=(
        "Only those for which this holds, such as state=ERROR, lr<0.1 or name~mnist (has it in it)."
        " May be repeated."
    ),
)
ordered = click.option(
    "--sort", metavar="COLUMN", help="In the order of this column; -COLUMN from the greatest."
)


def select(
    rows: Sequence[Row], conditions: Sequence[str], sort: str | None, limit: int | None
) -> list[Row]:
    """Return the rows that satisfy all conditions, sorted, at most `limit`.

    A column is named in full, or by its end where that is unique: `lr` for `net.lr`. A row without
    a value satisfies only `!=`, and is sorted to the end. Raises DetError for an invalid condition
    or an unknown column.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    tests = [_test(condition, columns) for condition in conditions] if rows else []
    found = [row for row in rows if all(test(row) for test in tests)]
    if sort and rows:
        column = _column(sort.removeprefix("-"), columns)
        valued = [row for row in found if row.get(column) is not None]
        valued.sort(key=lambda row: _comparable(row[column]), reverse=sort.startswith("-"))
        found = [*valued, *(row for row in found if row.get(column) is None)]
    return found[:limit]


def _test(condition: str, columns: Sequence[str]) -> Callable[[Row], bool]:
    read = _CONDITION.fullmatch(condition)
    if read is None:
        raise DetError(
            f"--filter is {condition!r}; give a column, one of = != < <= > >= ~, and a value, such"
            " as state=ERROR"
        )
    name, sign, text = read.groups()
    column = _column(name, columns)
    return lambda row: _holds(row.get(column), sign, text)


def _holds(value: Any, sign: str, text: str) -> bool:
    if isinstance(value, list | tuple):
        return (
            any(_holds(each, sign, text) for each in value) if sign != "!=" else text not in value
        )
    if value is None:
        return sign == "!="
    if sign == "~":
        return text.lower() in str(value).lower()
    left, right = _comparable(value), _comparable(_number(text))
    return _TESTS[sign](left, right) if left[0] == right[0] or sign in ("=", "!=") else False


def _comparable(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of different types."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value
    return 1, str(value).lower()


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _column(name: str, columns: Sequence[str]) -> str:
    ends = [column for column in columns if column.endswith(f".{name}")]
    if name in columns:
        return name
    if len(ends) == 1:
        return ends[0]
    known = ends or dict.fromkeys([*columns, *(column.rpartition(".")[2] for column in columns)])
    way_out = did_you_mean(name, known) or f"; known: {', '.join(known)}"
    raise DetError(f"there is no column {name!r}{way_out}")
