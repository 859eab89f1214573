"""Likely mistakes in search spaces.

These are values in place of exponents, and ranges and choices that are read as constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from det_core.config import Custom, ExperimentConfig, Log, Single
from det_core.config.faults import Path, dotted, shown

from ._yaml import scalar

_LARGEST = 1e18
_SMALLEST_EXPONENT = 0.1
_BOUNDS = ({"minval", "maxval"}, {"min", "max"}, {"low", "high"})
_CHOICES = ({"vals"}, {"values"}, {"choices"})
_OURS = ("minval", "vals")


class Doubt(NamedTuple):
    """A value that is read as one thing and was likely meant as another.

    `sure` says that it is a mistake in any search.
    """

    path: Path
    text: str
    sure: bool


def values_for_exponents(hp: Log, at: str) -> str:
    """Return the error for bounds of a `log` that are values, with the exponents.

    Returns an empty text if the bounds may be exponents.
    """
    try:
        low, high = sorted((hp.base**hp.minval, hp.base**hp.maxval))
    except OverflowError:
        low, high = 0.0, math.inf
    if high <= _LARGEST and not 0 < hp.minval < _SMALLEST_EXPONENT:
        return ""
    way_out = "give exponents"
    if hp.minval > 0 and hp.base != 1:
        way_out = (
            f"did you mean {math.log(hp.minval, hp.base):.4g} and"
            f" {math.log(hp.maxval, hp.base):.4g}?"
        )
    reach = f"from {low:.6g} to {high:.6g}" if high <= _LARGEST else "that are too large"
    return (
        f"{at} has the bounds {hp.minval:g} and {hp.maxval:g}, exponents of {hp.base:g} for values"
        f" {reach}; {way_out}"
    )


def doubts(hyperparameters: Any, config: ExperimentConfig) -> Iterator[Doubt]:
    """Yield hyperparameters that look like a range or a choice, but are read as constants.

    `hyperparameters` is as written. Bounds and choices in det's own words are always mistakes. In a
    search, so are lists and the words of other tools if nothing else varies. Otherwise they may be
    constants.
    """
    searching = config.searcher is not None and not isinstance(config.searcher, Single | Custom)
    sure = not _varies(config.hyperparameters)
    for path, value in _constants(hyperparameters, ("hyperparameters",)):
        if isinstance(value, list) and _has_range(value):
            yield Doubt(
                path,
                f"{dotted(path)} is a list, one constant, with a range in it; give each range a"
                f" name, such as {path[-1]}: {{first: {{type: ...}}, second: {{type: ...}}}}, or"
                " wrap it: {type: const, val: […]}",
                sure=True,
            )
            continue
        ours = isinstance(value, dict) and any(word in value for word in _OURS)
        meant = _meant(value)
        if not meant or not (ours or searching):
            continue
        text = isinstance(value, dict) or isinstance(value[0], str)
        # A list of numbers may be one value, such as the sizes of layers.
        if ours or sure or text:
            what, val = (
                ("a list, one constant", "[…]")
                if isinstance(value, list)
                else (_of_constants(value), "{…}")
            )
            way_out = f"did you mean {meant}? If not, wrap it: {{type: const, val: {val}}}"
            yield Doubt(path, f"{dotted(path)} is {what}; {way_out}", ours or sure)


def _of_constants(value: Mapping[str, Any]) -> str:
    return f"a map of the constant{'s' * (len(value) > 1)} {' and '.join(value)}"


def _varies(hyperparameters: Mapping[str, Any]) -> bool:
    return any(
        _varies(each) if isinstance(each, dict) else each.__struct_config__.tag != "const"
        for each in hyperparameters.values()
    )


def _constants(written: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield lists and innermost maps, except those marked as a range or a constant."""
    for name, value in written.items() if isinstance(written, dict) else ():
        where = (*path, name)
        if isinstance(value, list) or (
            isinstance(value, dict) and "type" not in value and _meant(value)
        ):
            yield where, value
        elif isinstance(value, dict) and "type" not in value:
            yield from _constants(value, where)


def _has_range(value: Any) -> bool:
    """Return whether a list has a range or a choice in det's words, at any depth."""
    if isinstance(value, list):
        return any(map(_has_range, value))
    if not isinstance(value, dict):
        return False
    return ("type" in value and any(word in value for word in _OURS)) or any(
        map(_has_range, value.values())
    )


def _meant(value: Any) -> str:
    """Return the range or the choice that a list or a map was likely meant to be.

    Returns an empty text if none is likely.
    """
    if isinstance(value, list):
        plain = len(value) > 1 and not any(isinstance(each, dict | list) for each in value)
        listed = ", ".join(_quoted(each) for each in value)
        return f"{{type: categorical, vals: [{listed}]}}" if plain else ""
    if value.keys() in _CHOICES:
        (inside,) = value.values()
        return _meant(inside) if isinstance(inside, list) else ""
    numbers = [
        each
        for each in value.values()
        if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    if value.keys() not in _BOUNDS or len(numbers) < 2 or min(numbers) == max(numbers):
        return ""
    low, high, whole = min(numbers), max(numbers), all(isinstance(each, int) for each in numbers)
    if not whole and low > 0 and high / low >= 100:
        return f"{{type: log, minval: {math.log10(low):.4g}, maxval: {math.log10(high):.4g}}}"
    return f"{{type: {'int' if whole else 'double'}, minval: {low}, maxval: {high}}}"


def _quoted(value: Any) -> str:
    return (
        value
        if isinstance(value, str) and value.isidentifier() and scalar(value) == value
        else shown(value)
    )
