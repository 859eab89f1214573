"""What mattered, by a functional analysis of variance of a random forest, with scikit-learn.

Source: Hutter, Hoos and Leyton-Brown 2014, "An Efficient Approach for Assessing Hyperparameter
Importance", ICML, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from det_core.errors import DetError

from ._importances import _is_number, _ranks

FEWEST_FOR_FOREST = 20
"""With fewer trials, the result of a forest does not differ from chance."""
_MOST_TRIALS = 1000
_TREES = 64
_LEAF = 3
"""The least number of trials in a leaf."""


def fanova(trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return how much of the variance of the trials' ranks each hyperparameter alone explains.

    Unlike `importances`, it averages over the other hyperparameters, also where trials are unevenly
    spread over them. Shares are multiplied by what the forest predicts of trials that it has not
    seen, so that chance explains nothing. Empty where trials are fewer than 20, where some lack a
    hyperparameter that others have, or where all are equally good. DetError without scikit-learn.
    """
    try:
        import numpy
        from sklearn.ensemble import RandomForestRegressor
    except ModuleNotFoundError:
        raise DetError(
            "fANOVA comes with scikit-learn, which is not installed; pip install scikit-learn"
        ) from None
    trials = trials[:: -(-len(trials) // _MOST_TRIALS) or 1]
    names = list(dict.fromkeys(name for hparams, _ in trials for name in hparams))
    complete = all(hparams.get(name) is not None for hparams, _ in trials for name in names)
    if len(trials) < FEWEST_FOR_FOREST or not names or not complete:
        return {}
    ranks = _ranks([metric for _, metric in trials])
    if len(set(ranks)) < 2:
        return {}
    columns = numpy.array(
        [_places([hparams[name] for hparams, _ in trials], ranks) for name in names]
    ).T
    forest = RandomForestRegressor(_TREES, min_samples_leaf=_LEAF, oob_score=True, random_state=0)
    forest.fit(columns, ranks)
    predicted = max(0.0, float(forest.oob_score_))
    found = [_shares_of_tree(numpy, tree.tree_, len(names)) for tree in forest.estimators_]
    means = numpy.mean(
        [shares for shares in found if shares is not None] or [[0.0] * len(names)], axis=0
    )
    shares = {name: predicted * float(share) for name, share in zip(names, means, strict=True)}
    return dict(sorted(shares.items(), key=lambda item: -item[1])) if any(shares.values()) else {}


def _places(values: Sequence[Any], ranks: Sequence[float]) -> list[float]:
    """Return the positions of values between 0 and 1, with equal density.

    Categories are in the order of their mean rank.
    """
    keys: list[Any] = [*values]
    if not all(map(_is_number, values)):
        groups: dict[str, list[float]] = {}
        for value, rank in zip(values, ranks, strict=True):
            groups.setdefault(repr(value), []).append(rank)
        order = sorted(groups, key=lambda key: (mean(groups[key]), key))
        keys = [order.index(repr(value)) for value in values]
    return [(rank + 0.5) / len(keys) for rank in _ranks(keys)]


def _shares_of_tree(numpy: Any, tree: Any, axes: int) -> list[float] | None:
    """Return the share of a tree's variance that each axis alone explains.

    None: the tree is constant.
    """
    boxes, values = [], []
    stack = [(0, [(0.0, 1.0)] * axes)]
    while stack:
        node, box = stack.pop()
        left, right, axis = tree.children_left[node], tree.children_right[node], tree.feature[node]
        if left == right:
            boxes.append(box)
            values.append(tree.value[node].item())
            continue
        low, high = box[axis]
        at = min(max(float(tree.threshold[node]), low), high)
        stack.append((left, [*box[:axis], (low, at), *box[axis + 1 :]]))
        stack.append((right, [*box[:axis], (at, high), *box[axis + 1 :]]))
    lows, highs = numpy.array(boxes).transpose(2, 0, 1)
    sizes, leaf = highs - lows, numpy.array(values)
    volumes = sizes.prod(axis=1)
    overall = float(volumes @ leaf)
    whole = float(volumes @ (leaf - overall) ** 2)
    if whole <= 0:
        return None
    found = []
    for axis in range(axes):
        others = numpy.delete(sizes, axis, axis=1).prod(axis=1)
        ends = numpy.unique(numpy.concatenate([lows[:, axis], highs[:, axis]]))
        middles = (ends[1:] + ends[:-1]) / 2
        inside = (lows[:, axis] <= middles[:, None]) & (middles[:, None] < highs[:, axis])
        marginal = inside @ (others * leaf)
        found.append(float(numpy.diff(ends) @ (marginal - overall) ** 2) / whole)
    return found
