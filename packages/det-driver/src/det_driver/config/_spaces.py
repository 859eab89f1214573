"""Search spaces that cannot be meant: values in place of exponents, and ranges and choices that are read as constants."""

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
    """What is read as one thing and was likely meant as another; `sure` says that no search can mean it as it is."""

    path: Path
    text: str
    sure: bool


def values_for_exponents(hp: Log, at: str) -> str:
    """Return what is wrong with the bounds of a `log` that can only be values, and the exponents; empty where nothing is."""
    try:
        low, high = sorted((hp.base**hp.minval, hp.base**hp.maxval))
    except OverflowError:
        low, high = 0.0, math.inf
    if high <= _LARGEST and not 0 < hp.minval < _SMALLEST_EXPONENT:
        return ""
    way_out = "give exponents"
    if hp.minval > 0 and hp.base != 1:
        way_out = f"did you mean {math.log(hp.minval, hp.base):.4g} and {math.log(hp.maxval, hp.base):.4g}?"
    reach = f"from {low:.6g} to {high:.6g}" if high <= _LARGEST else "that are too large"
    return (
        f"{at} has the bounds {hp.minval:g} and {hp.maxval:g}, exponents of {hp.base:g} for values {reach}; {way_out}"
    )


def doubts(hyperparameters: Any, config: ExperimentConfig) -> Iterator[Doubt]:
    """Yield what in `hyperparameters`, as they are written, looks like a range or a choice and is read as constants.

    Bounds and choices in det's own words are never meant so. In a search, lists and the words of others are no constants
    where nothing else varies; else they may be.
    """
    searching = config.searcher is not None and not isinstance(config.searcher, Single | Custom)
    sure = not _varies(config.hyperparameters)
    for path, value in _constants(hyperparameters, ("hyperparameters",)):
        ours = isinstance(value, dict) and any(word in value for word in _OURS)
        meant = _meant(value)
        if not meant or not (ours or searching):
            continue
        text = isinstance(value, dict) or isinstance(value[0], str)
        if ours or sure or text:  # a list of numbers may well be one thing, such as the sizes of layers
            what, val = ("a list, one constant", "[…]") if isinstance(value, list) else (_of_constants(value), "{…}")
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
    """Yield lists, and maps that hold no further map, but not what is marked as a range or a constant."""
    for name, value in written.items() if isinstance(written, dict) else ():
        where = (*path, name)
        if isinstance(value, list) or (isinstance(value, dict) and "type" not in value and _meant(value)):
            yield where, value
        elif isinstance(value, dict) and "type" not in value:
            yield from _constants(value, where)


def _meant(value: Any) -> str:
    """Return the range or the choice that a list or a map was likely meant to be; empty where none is likely."""
    if isinstance(value, list):
        plain = len(value) > 1 and not any(isinstance(each, dict | list) for each in value)
        listed = ", ".join(_quoted(each) for each in value)
        return f"{{type: categorical, vals: [{listed}]}}" if plain else ""
    if value.keys() in _CHOICES:
        (inside,) = value.values()
        return _meant(inside) if isinstance(inside, list) else ""
    numbers = [each for each in value.values() if isinstance(each, int | float) and not isinstance(each, bool)]
    if value.keys() not in _BOUNDS or len(numbers) < 2 or min(numbers) == max(numbers):
        return ""
    low, high, whole = min(numbers), max(numbers), all(isinstance(each, int) for each in numbers)
    if not whole and low > 0 and high / low >= 100:
        return f"{{type: log, minval: {math.log10(low):.4g}, maxval: {math.log10(high):.4g}}}"
    return f"{{type: {'int' if whole else 'double'}, minval: {low}, maxval: {high}}}"


def _quoted(value: Any) -> str:
    return value if isinstance(value, str) and value.isidentifier() and scalar(value) == value else shown(value)
