"""Hyperband."""

from __future__ import annotations

import math
from collections.abc import Mapping

from det_core.config import Hyperband, Hyperparameter

from ._lengths import length_of
from ._objective import Objective
from ._search import Search
from ._sync_halving import Rung, SyncHalving
from ._tournament import Tournament


def make(config: Hyperband, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return Hyperband: brackets of synchronous successive halving, side by side."""
    objective = Objective(config.metric, config.smaller_is_better)
    brackets = hyperband_brackets(length_of(config.max_length, "searcher.max_length"), config.divisor)
    return Search(Tournament([SyncHalving(objective, rungs) for rungs in brackets]), hyperparameters, seed)


def hyperband_brackets(max_length: int, divisor: float) -> list[list[Rung]]:
    """Return the rungs of every bracket, the one that stops most trials early first.

    Source: Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
    algorithm 1: R is `max_length`, eta is `divisor`. Rungs of equal length (with a `divisor` near 1) are taken as one.
    """
    most = 0
    while divisor ** (most + 1) <= max_length:
        most += 1
    return [_bracket(max_length, divisor, most, halvings) for halvings in range(most, -1, -1)]


def _bracket(max_length: int, divisor: float, most: int, halvings: int) -> list[Rung]:
    trials = math.ceil((most + 1) * divisor**halvings / (halvings + 1))
    rungs = (
        Rung(trials=max(int(trials / divisor**i), 1), length=max(int(max_length / divisor ** (halvings - i)), 1))
        for i in range(halvings + 1)
    )
    by_length: dict[int, Rung] = {}
    for rung in rungs:
        by_length.setdefault(rung.length, rung)
    return list(by_length.values())
