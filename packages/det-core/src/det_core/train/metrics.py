"""Converts the metrics that a framework returns to plain numbers, and computes their means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from ..errors import MetricError, shown

_MOST_DEEP = 100
_MOST_PRINTED = 8


def number(name: str, value: Any) -> float:
    """Return a metric as a plain number: an int, float, bool, or an array or tensor that holds one.

    Raises MetricError, naming the metric, for anything else.
    """
    if type(value) in (float, int, bool):
        return value  # type: ignore[no-any-return]
    try:
        # TensorFlow's tensors have no item(), and the arrays they give have.
        array = value if hasattr(value, "item") or not hasattr(value, "numpy") else value.numpy()
        item = getattr(array, "item", None)
        plain = item() if callable(item) else array
    except Exception:
        # An array of several numbers raises ValueError, and a user's class raises anything.
        plain = value
    if isinstance(plain, bool):
        return plain
    # Subclasses are converted, as no encoder knows them.
    for kind in (int, float):
        if isinstance(plain, kind):
            return kind(plain)
    raise MetricError(
        f"metric {name!r} is {_shown(value)}; return a number, or a tensor or array that holds one"
    )


def _shown(value: Any) -> str:
    with suppress(Exception):
        if (shape := getattr(value, "shape", None)) is not None:
            return f"a {type(value).__name__} of shape {tuple(shape)}"
    return f"{shown(value, 60)} ({type(value).__name__})"


def brief(value: Any) -> Any:
    """Return a metric to print in a line. A list of more than 8 values becomes its type and shape.

    For example `list of 10 x 10`.
    """
    shape, inner = [], value
    while isinstance(inner, (list, tuple)):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    if math.prod(shape) <= _MOST_PRINTED:
        return value
    return f"{type(value).__name__} of {' x '.join(map(str, shape))}"


def number_or_none(value: Any) -> float | None:
    """Return a finite or infinite number, or None for NaN and what is not a number."""
    if isinstance(value, (int, float)) and not math.isnan(value):
        return float(value)
    return None


def searcher_metric(name: str, metrics: Mapping[str, Any]) -> float:
    """Return the searcher's metric.

    Raises MetricError when it is missing, naming those present, or when it is not a number.
    """
    if name not in metrics:
        known = ", ".join(sorted(set(metrics) - {"batches", "epochs"})) or "nothing"
        raise MetricError(
            f"searcher.metric is {name!r}, but the validation returned {known}; return it, or name"
            " one of those"
        )
    return number(f"{name} (searcher.metric)", metrics[name])


def mean(rows: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Return the mean of each metric over the batches that hold it.

    Sums are exactly rounded (`math.fsum`), so that they do not depend on where a run was
    interrupted.
    """
    means = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        terms = [(row[name], count) for row, count in zip(rows, counts, strict=True) if name in row]
        means[name] = _sum([value * count for value, count in terms]) / sum(
            [count for _, count in terms]
        )
    return means


def _sum(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        # Infinities of both signs have no exact sum.
        return sum(numbers)


def mapping(metrics: Any) -> Mapping[str, Any]:
    """Return the result of a validation. Raises MetricError if it is not a mapping."""
    if not isinstance(metrics, Mapping):
        raise MetricError(
            f"validation returned {type(metrics).__name__}; return a dict of metrics by name"
        )
    return metrics


def plain(metrics: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
    """Turn values into numbers where possible. Text, lists and None stay, and bytes are dropped.

    Text is escaped so that it can be sent. Integers beyond 64 bits become floats for the same
    reason. Values of other types become text, or are refused where `strict`.

    Raises MetricError, naming the metric, for what is refused, nested too deep, or raises when it
    is read.
    """
    found = {}
    for name, value in metrics.items():
        if isinstance(value, bytes):
            continue
        try:
            found[_text(str(name))] = _plain(value, strict, _MOST_DEEP)
        except Exception as error:
            raised = f", which raised {type(error).__name__}"
            why = str(error) if isinstance(error, _Refused) else raised
            raise MetricError(
                f"metric {shown(name)} is {_shown(value)}{why}; report a number, text, a list or"
                " dict of these, or None"
            ) from None
    return found


class _Refused(Exception):
    """A value that is no metric. The message says what else its text does not show."""


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _plain(value: Any, strict: bool, depth: int) -> Any:
    if value is None or type(value) in (bool, float):
        return value
    if type(value) is str:
        return _text(value)
    if type(value) is int:
        return _whole(value)
    if not depth:
        raise _Refused(f", nested more than {_MOST_DEEP} deep")
    if isinstance(value, Mapping):
        return {
            _text(str(name)): _plain(inner, strict, depth - 1)
            for name, inner in value.items()
            if not isinstance(inner, bytes)
        }
    if isinstance(value, (list, tuple)):
        return [_plain(inner, strict, depth - 1) for inner in value]
    convert = getattr(value, "tolist", None) or getattr(value, "item", None)
    if callable(convert):
        converted = convert()
        if type(converted) is not type(value):
            return _plain(converted, strict, depth - 1)
    return _other(value, strict)


def _other(value: Any, strict: bool) -> Any:
    # Subclasses, such as enumerations, are converted, as no encoder knows them.
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return _whole(int(value))
    # Such as a Decimal.
    if hasattr(type(value), "__float__"):
        return float(value)
    if strict:
        raise _Refused
    return _text(repr(value))


def _whole(value: int) -> float:
    if -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
