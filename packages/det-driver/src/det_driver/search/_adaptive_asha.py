"""Adaptive ASHA: brackets of ASHA side by side."""

from __future__ import annotations

from collections.abc import Mapping

from det_core.config import AdaptiveAsha, Hyperparameter

from ._async_halving import asha_bracket, longest
from ._rungs import bracket_max_concurrent_trials, bracket_max_trials, bracket_rungs, useful_rungs
from ._search import Search
from ._tournament import Tournament


def make(config: AdaptiveAsha, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return adaptive ASHA.

    Brackets differ in how early they stop trials, since nobody knows beforehand how early is right; `mode` or
    `bracket_rungs` says which there are. At least one trial of each bracket runs at a time.

    Source: Li et al. 2018, "Hyperband", JMLR 18(185), for the brackets; Li et al. 2020, "A System for Massively
    Parallel Hyperparameter Tuning", MLSys, for what runs in them.
    """
    brackets = [asha_bracket(config, *bracket) for bracket in adaptive_brackets(config)]
    return Search(Tournament(brackets), hyperparameters, seed)


def adaptive_brackets(config: AdaptiveAsha) -> list[tuple[int, int, int]]:
    """Return each bracket's number of rungs, trials, and trials at a time."""
    most = useful_rungs(config.max_rungs, config.divisor, longest(config), config.max_trials)
    rungs = sorted(config.bracket_rungs, reverse=True) or bracket_rungs(config.mode, most)
    trials = bracket_max_trials(config.max_trials, config.divisor, rungs)
    concurrent = bracket_max_concurrent_trials(config.max_concurrent_trials, config.divisor, trials)
    return list(zip(rungs, trials, concurrent, strict=False))
