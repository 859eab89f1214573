"""Likely mistakes in search spaces and in what is searched for.

These are values in place of exponents, ranges and choices that are read as constants, and metrics
that are likely better when larger.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from det_core.config import RANGES, Categorical, Const, Custom, ExperimentConfig, Log, Single
from det_core.config.faults import Path, dotted, shown

from ._yaml import scalar

_LARGEST = 1e18
_SMALLEST_EXPONENT = 0.1
_BOUNDS = ({"minval", "maxval"}, {"min", "max"}, {"low", "high"})
_CHOICES = ({"vals"}, {"values"}, {"choices"})
_OURS = ("minval", "vals")
_OPTIONS = ("count", "step", "log", "base", "ordered", "when")


_LARGER_IS_BETTER = {
    *("acc", "accuracy", "ap", "auc", "auroc", "bleu", "dice", "f1", "iou", "map", "miou", "ndcg"),
    *("precision", "psnr", "r2", "recall", "reward", "rouge", "sensitivity", "specificity", "ssim"),
}
_SMALLER_IS_BETTER = {"deviation", "distance", "error", "loss", "mae", "mse", "perplexity", "rmse"}


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


def doubtful_direction(searcher: Any, config: ExperimentConfig) -> str:
    """Return a notice about a metric that is likely better when larger, but counts the other way.

    `searcher` is as written. Returns an empty text if it says which way is better.
    """
    metric = config.searcher.metric if config.searcher is not None else None
    if not isinstance(searcher, Mapping) or "smaller_is_better" in searcher or not metric:
        return ""
    words = set(re.findall(r"[a-z]+(?:[12](?![0-9]))?", metric.lower()))
    words |= {word.rstrip("12") for word in words}
    if not words & _LARGER_IS_BETTER or words & _SMALLER_IS_BETTER:
        return ""
    return (
        f"searcher.metric is {metric!r}, and its smallest value counts as the best; write"
        " smaller_is_better: false if larger is better, or true"
    )


def drawn_once(config: ExperimentConfig) -> tuple[list[Path], str]:
    """Return the ranges from which the searcher `single` draws a value, and a notice that says so.

    A choice of one value is none.
    """
    paths = list(_ranges(config.hyperparameters, ("hyperparameters",)))
    if not isinstance(config.searcher, Single) or not paths:
        return [], ""
    names = ", ".join(map(dotted, paths))
    each = "" if len(paths) == 1 else " of each"
    return paths, (
        f"searcher.name is single, which draws one value{each} at random: {names}; write a value,"
        " or choose another searcher for a search"
    )


def _ranges(hyperparameters: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for name, each in hyperparameters.items():
        if isinstance(each, dict):
            yield from _ranges(each, (*path, name))
        elif isinstance(each, Categorical):
            if any(value != each.vals[0] for value in each.vals):
                yield (*path, name)
        elif not isinstance(each, Const):
            yield (*path, name)


def doubts(hyperparameters: Any, config: ExperimentConfig) -> Iterator[Doubt]:
    """Yield hyperparameters that look like a range or a choice, but are read as constants.

    `hyperparameters` is as written. Bounds and choices in det's own words are always mistakes. In a
    search, so are lists and the words of other tools if nothing else varies. Otherwise they may be
    constants.
    """
    searching = config.searcher is not None and not isinstance(config.searcher, Single | Custom)
    sure = not _varies(config.hyperparameters)
    for path, value in _choices(hyperparameters, ("hyperparameters",)):
        if _has_range(value, exact=True):
            yield Doubt(
                path,
                f"{dotted(path)} are constants, with a range in them; give each range a name of"
                f" its own, with when: {{{path[-2]}: …}}, which says for which choice it is",
                sure=True,
            )
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
        ours = isinstance(value, dict) and _is_ours(value)
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


def _choices(written: Any, path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """Yield the values of categorical hyperparameters."""
    for name, value in written.items() if isinstance(written, dict) else ():
        if not isinstance(value, dict):
            continue
        if "type" not in value:
            yield from _choices(value, (*path, name))
        elif value["type"] == "categorical" and isinstance(value.get("vals"), list):
            yield (*path, name, "vals"), value["vals"]


def _has_range(value: Any, *, exact: bool = False) -> bool:
    """Return whether a list has a range or a choice in det's words, at any depth.

    With `exact`, maps of an unknown type are none.
    """
    if isinstance(value, list):
        return any(_has_range(each, exact=exact) for each in value)
    if not isinstance(value, dict):
        return False
    if "type" in value:
        is_range = _is_ours(value) and (not exact or value["type"] in [*RANGES])
    else:
        is_range = _is_ours(value) and _meant(value) != ""
    return is_range or any(_has_range(each, exact=exact) for each in value.values())


def _is_ours(value: Mapping[str, Any]) -> bool:
    return any(word in value for word in _OURS)


def _meant(value: Any) -> str:
    """Return the range or the choice that a list or a map was likely meant to be.

    Returns an empty text if none is likely.
    """
    if isinstance(value, list):
        plain = len(value) > 1 and not any(isinstance(each, dict | list) for each in value)
        listed = ", ".join(_quoted(each) for each in value)
        return f"{{type: categorical, vals: [{listed}]}}" if plain else ""
    options = ""
    if _is_ours(value):
        options = "".join(f", {key}: {shown(value[key])}" for key in value if key in _OPTIONS)
        value = {key: each for key, each in value.items() if key not in _OPTIONS}
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
        exponents = f"minval: {math.log10(low):.4g}, maxval: {math.log10(high):.4g}"
        return f"{{type: log, {exponents}{options}}}"
    return f"{{type: {'int' if whole else 'double'}, minval: {low}, maxval: {high}{options}}}"


def _quoted(value: Any) -> str:
    return (
        value
        if isinstance(value, str) and value.isidentifier() and scalar(value) == value
        else shown(value)
    )
