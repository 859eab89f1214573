"""Checks the arguments of the Core API and of trial contexts when the user calls them."""

from __future__ import annotations

import enum
import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ArgumentError, MetricError, shown
from .failure import line_of_caller
from .metrics import number

_END = 2**63
E = TypeVar("E", bound=enum.Enum)


def refuse(call: str, name: str, value: object, way_out: str, text: str = "") -> ArgumentError:
    """Return the error for an argument: the caller's line, the call, and what to give instead.

    `text` replaces a value whose own text says little, such as an array's.
    """
    return ArgumentError(f"{line_of_caller()}{call}({name}={text or shown(value)}): give {way_out}")


def whole(
    call: str,
    name: str,
    value: Any,
    way_out: str = "a whole number of batches, 0 or more",
    low: int = 0,
) -> int:
    """Return a number of batches as an int. NumPy and torch integers are accepted."""
    try:
        index = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        raise refuse(call, name, value, way_out) from None
    if isinstance(value, bool) or index < low:
        raise refuse(call, name, value, way_out)
    if index >= _END:
        raise refuse(call, name, value, f"{way_out} and below 2**63")
    return index


def real(
    call: str, name: str, value: Any, way_out: str, low: float, high: float = math.inf
) -> float:
    """Return a number within bounds. NaN is refused."""
    try:
        given = math.nan if isinstance(value, bool) else float(number(name, value))
    except (MetricError, OverflowError):
        raise refuse(call, name, value, way_out) from None
    if not low <= given <= high:
        raise refuse(call, name, value, way_out)
    return given


def text(call: str, name: str, value: Any) -> str:
    """Return a text, which must not be empty, as one that can be sent."""
    if not isinstance(value, str) or not value:
        raise refuse(call, name, value, "text")
    # A subclass may have a `__str__` of its own.
    return str.__str__(value).encode(errors="backslashreplace").decode()


def mapping(call: str, name: str, value: Any) -> Mapping[Any, Any]:
    """Return a dict, or raise ArgumentError."""
    if not isinstance(value, Mapping):
        raise refuse(call, name, value, "a dict")
    return value


def metadata(call: str, value: Any) -> dict[str, Any]:
    """Return the metadata of a checkpoint, with `steps_completed` as an int."""
    given = {} if value is None else dict(mapping(call, "metadata", value))
    if "steps_completed" in given:
        given["steps_completed"] = whole(
            call, "metadata['steps_completed']", given["steps_completed"]
        )
    try:
        json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(call, "metadata", value, f"what JSON can hold ({error})") from None
    return given


def path(call: str, name: str, value: Any) -> Path:
    """Return a path, which must not be empty."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise refuse(call, name, value, "a path")
    return Path(value)


def function(call: str, name: str, value: Any) -> None:
    """Check that a value is callable or None."""
    if value is not None and not callable(value):
        raise refuse(call, name, value, "a function")


def member(call: str, name: str, value: Any, kind: type[E]) -> E:
    """Return a member of an enumeration, given as itself or by its value."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each) for each in kind)
        raise refuse(call, name, value, f"one of {known}") from None
