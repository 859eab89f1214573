"""The importance of a search's hyperparameters, and the metric along one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

FEWEST_TRIALS = 8
"""With fewer trials, importances would be the result of chance."""
_MOST_SLICES = 5


@dataclass(frozen=True)
class Slice:
    """Trials with the same value of one hyperparameter, or with values in the same interval.

    `least` and `greatest` are values that occurred. `best` is the best metric of the trials, and
    `middle` is their median metric.
    """

    least: Any
    greatest: Any
    trials: int
    best: float
    middle: float


def importances(trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return for each hyperparameter the share of the variance of ranks that it alone explains.

    `trials` are the hyperparameters of each trial, by name, with its best metric. The ranks are
    those of the metrics. Numbers are cut into up to five slices of equal count. A trial without a
    hyperparameter is ignored for it. The share, from 0 to 1, excludes what chance would explain
    (epsilon squared of the analysis of variance). The most important hyperparameter comes first.
    The result is empty for fewer than 8 trials, or if all are equally good.
    """
    if len(trials) < FEWEST_TRIALS:
        return {}
    ranks = _ranks([metric for _, metric in trials])
    found = {}
    for name in dict.fromkeys(name for hparams, _ in trials for name in hparams):
        there = [i for i, (hparams, _) in enumerate(trials) if hparams.get(name) is not None]
        groups = _groups([trials[i][0][name] for i in there])
        found[name] = _explained([[ranks[there[i]] for i in group] for group in groups], ranks)
    return dict(sorted(found.items(), key=lambda item: -item[1])) if any(found.values()) else {}


def whole_percents(shares: Mapping[str, float]) -> tuple[dict[str, int], int]:
    """Return shares as whole percents, and the percents of interplay and chance.

    All together are 100. Shares that are more than the whole are scaled to it. The greatest
    remainders are rounded up.
    """
    whole = max(1.0, sum(shares.values()))
    parts = [100 * share / whole for share in shares.values()]
    parts.append(max(0.0, 100 - sum(parts)))
    percents = [math.floor(part + 1e-9) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: percents[i] - parts[i])
    for i in by_remainder[: 100 - sum(percents)]:
        percents[i] += 1
    return dict(zip(shares, percents, strict=False)), percents[-1]


def slices(trials: Sequence[tuple[Any, float]], *, smaller_is_better: bool) -> list[Slice]:
    """Return how good the trials are along one hyperparameter.

    `trials` has its value and the best metric of each trial. Numbers come in up to five slices of
    equal count, from the least. Each value of another type is a slice, the most frequent first.
    """
    best = min if smaller_is_better else max
    found = []
    for group in _groups([value for value, _ in trials]):
        values, metrics = [trials[i][0] for i in group], [trials[i][1] for i in group]
        ends = (
            (min(values), max(values)) if all(map(_is_number, values)) else (values[0], values[0])
        )
        found.append(Slice(*ends, len(group), best(metrics), median(metrics)))
    return found


def _groups(values: Sequence[Any]) -> list[list[int]]:
    """Return the indices of values that belong together: equal values, or adjacent numbers."""
    absent = [i for i, value in enumerate(values) if value is None]
    there = [i for i, value in enumerate(values) if value is not None]
    equal: dict[Any, list[int]] = {}
    numeric = all(_is_number(values[i]) for i in there)
    for i in there:
        equal.setdefault(values[i] if numeric else repr(values[i]), []).append(i)
    if numeric:
        groups = _cut(
            [equal[value] for value in sorted(equal)], max(2, min(_MOST_SLICES, len(there) // 4))
        )
    else:
        groups = sorted(equal.values(), key=lambda group: -len(group))
    return [*groups, absent] if absent else groups


def _cut(ordered: Sequence[list[int]], most: int) -> list[list[int]]:
    """Join adjacent groups to at most `most` groups of about equal size."""
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
    """Return the rank of each value. Equal values share their mean rank."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    ranks = {value: sum(shared) / len(shared) for value, shared in places.items()}
    return [ranks[value] for value in values]


def _explained(groups: Sequence[Sequence[float]], ranks: Sequence[float]) -> float:
    """Return the share of the variance of all ranks that groups of some of them explain."""
    count, mean = sum(map(len, groups)), sum(map(sum, groups)) / sum(map(len, groups))
    total = sum((rank - mean) ** 2 for group in groups for rank in group)
    overall = sum(ranks) / len(ranks)
    whole = sum((rank - overall) ** 2 for rank in ranks)
    means = [sum(group) / len(group) for group in groups]
    within = sum(
        (rank - own) ** 2 for group, own in zip(groups, means, strict=True) for rank in group
    )
    if len(groups) < 2 or count <= len(groups) or not total:
        return 0.0
    return max(0.0, (total - within - (len(groups) - 1) * within / (count - len(groups))) / whole)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
