"""What a search says of its hyperparameters: how much each alone explains, and the metric along one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

FEWEST_TRIALS = 8
"""With fewer trials, what they say of importances is chance."""
_MOST_SLICES = 5


@dataclass(frozen=True)
class Slice:
    """Trials whose values of one hyperparameter are the same, or lie between the same two.

    `least` and `greatest` are values that occurred; `best` and `middle` are the trials' best metric and its median.
    """

    least: Any
    greatest: Any
    trials: int
    best: float
    middle: float


def importances(trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return for each hyperparameter the share, 0 to 1, of the variance of the trials' ranks that it alone explains.

    `trials` are the hyperparameters of each, by name, with its best metric; those that are numbers are cut into up to five
    slices of equal count. What chance would explain is subtracted (epsilon squared of the analysis of variance). The most
    important comes first. Empty where trials are fewer than 8, or all equally good.
    """
    if len(trials) < FEWEST_TRIALS:
        return {}
    ranks = _ranks([metric for _, metric in trials])
    found = {}
    for name in dict.fromkeys(name for hparams, _ in trials for name in hparams):
        groups = _groups([hparams.get(name) for hparams, _ in trials])
        found[name] = _explained([[ranks[i] for i in group] for group in groups])
    return dict(sorted(found.items(), key=lambda item: -item[1])) if any(found.values()) else {}


def slices(trials: Sequence[tuple[Any, float]], *, smaller_is_better: bool) -> list[Slice]:
    """Return how good the trials are along one hyperparameter, given its value and the best metric of each.

    Numbers come in up to five slices of equal count, from the least; of anything else each value is a slice, the commonest first.
    """
    best = min if smaller_is_better else max
    found = []
    for group in _groups([value for value, _ in trials]):
        values, metrics = [trials[i][0] for i in group], [trials[i][1] for i in group]
        ends = (min(values), max(values)) if all(map(_is_number, values)) else (values[0], values[0])
        found.append(Slice(*ends, len(group), best(metrics), median(metrics)))
    return found


def _groups(values: Sequence[Any]) -> list[list[int]]:
    """Return the places of values that are together: equal ones, or numbers that are neighbours."""
    absent = [i for i, value in enumerate(values) if value is None]
    there = [i for i, value in enumerate(values) if value is not None]
    equal: dict[Any, list[int]] = {}
    numeric = all(_is_number(values[i]) for i in there)
    for i in there:
        equal.setdefault(values[i] if numeric else repr(values[i]), []).append(i)
    if numeric:
        groups = _cut([equal[value] for value in sorted(equal)], max(2, min(_MOST_SLICES, len(there) // 4)))
    else:
        groups = sorted(equal.values(), key=lambda group: -len(group))
    return [*groups, absent] if absent else groups


def _cut(ordered: Sequence[list[int]], most: int) -> list[list[int]]:
    """Join neighbours, so that at most so many groups are left, as equal as they can be."""
    if len(ordered) <= most:
        return [*ordered]
    groups: list[list[int]] = [[]]
    rest = sum(map(len, ordered))
    for together in ordered:
        left = most - len(groups)
        if left and groups[-1] and len(groups[-1]) + len(together) / 2 > rest / (left + 1):
            rest -= len(groups[-1])
            groups.append([])
        groups[-1] += together
    return groups


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, equal ones sharing theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    ranks = {value: sum(shared) / len(shared) for value, shared in places.items()}
    return [ranks[value] for value in values]


def _explained(groups: Sequence[Sequence[float]]) -> float:
    count, mean = sum(map(len, groups)), sum(map(sum, groups)) / sum(map(len, groups))
    total = sum((rank - mean) ** 2 for group in groups for rank in group)
    means = [sum(group) / len(group) for group in groups]
    within = sum((rank - own) ** 2 for group, own in zip(groups, means, strict=True) for rank in group)
    if len(groups) < 2 or count <= len(groups) or not total:
        return 0.0
    return max(0.0, (total - within - (len(groups) - 1) * within / (count - len(groups))) / total)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
