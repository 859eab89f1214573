"""Makes schedules of settings: how long each trial trains."""

from __future__ import annotations

import sys

from det_core import config as settings
from det_core.config import Length
from det_core.errors import ConfigError

from ._asha import Bracket, PromotionASHA, StoppingASHA
from ._rungs import (
    bracket_max_concurrent_trials,
    bracket_max_trials,
    bracket_rungs,
    initial_trials,
    rung_lengths,
    useful_rungs,
)
from ._search import Method, Tournament
from .base import Objective

Halving = settings.AsyncHalving | settings.AdaptiveAsha | settings.Combined


def adaptive_brackets(
    config: settings.AdaptiveAsha | settings.Combined, max_trials: int | None = None
) -> list[tuple[int, int, int]]:
    """Return the number of rungs, trials and concurrent trials of each bracket of adaptive ASHA.

    Brackets differ in how early they stop trials, since the best time is not known beforehand.
    `mode` or `bracket_rungs` chooses them. Each bracket runs at least one trial at a time.

    Source: for the brackets Li et al. 2018, "Hyperband", JMLR 18(185). For the schedule in them Li
    et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys.
    """
    max_trials = max_trials or config.max_trials or 1
    most = useful_rungs(config.max_rungs, config.divisor, longest(config), max_trials)
    rungs = sorted(config.bracket_rungs, reverse=True) or bracket_rungs(config.mode, most)
    trials = bracket_max_trials(max_trials, config.divisor, rungs)
    concurrent = bracket_max_concurrent_trials(config.max_concurrent_trials, config.divisor, trials)
    return list(zip(rungs, trials, concurrent, strict=False))


def asha_bracket(
    config: Halving, num_rungs: int, max_trials: int, max_concurrent_trials: int
) -> Method:
    """Return a bracket: by stopping with `max_time` or `stop_once`, else by promotion."""
    bracket = Bracket(
        objective=Objective(config.metric, config.smaller_is_better),
        lengths=rung_lengths(num_rungs, config.divisor, longest(config)),
        divisor=config.divisor,
        max_trials=max_trials,
        initial_trials=initial_trials(max_concurrent_trials, max_trials, config.divisor, num_rungs),
        at_once=initial_trials(max_concurrent_trials, sys.maxsize, config.divisor, num_rungs),
    )
    if config.max_time is None and not config.stop_once:
        return PromotionASHA(bracket)
    return StoppingASHA(bracket, None if config.max_time is None else config.time_metric)


def side_by_side(config: Halving, rungs: int, brackets: list[Method]) -> Tournament:
    """Return concurrent brackets, with one more for idle slots if `use_idle_slots` is set."""
    filler = (
        asha_bracket(config, rungs, 0, config.max_concurrent_trials)
        if config.use_idle_slots
        else None
    )
    return Tournament(brackets, filler=filler)


def async_halving(config: settings.AsyncHalving | settings.Combined, trials: int) -> Method:
    """Return one bracket of asynchronous halving."""
    bracket = asha_bracket(config, config.num_rungs, trials, config.max_concurrent_trials)
    return side_by_side(config, config.num_rungs, [bracket]) if config.use_idle_slots else bracket


def adaptive_asha(
    config: settings.AdaptiveAsha | settings.Combined, trials: int | None = None
) -> Method:
    """Return several brackets of asynchronous halving."""
    found = adaptive_brackets(config, trials)
    return side_by_side(config, found[0][0], [asha_bracket(config, *bracket) for bracket in found])


def longest(config: Halving) -> int:
    """Return how long the best trials train: `max_time` in `time_metric`, or `max_length`."""
    if config.max_time is not None:
        if config.time_metric is None:
            raise ConfigError(
                f"searcher.max_time is {config.max_time}, but there is no time_metric; name the"
                " validation metric that says how long a trial has trained, such as batches"
            )
        return config.max_time
    if config.max_length is None:
        raise ConfigError(
            f"searcher {config.name} has no length; give max_length, or max_time and time_metric"
        )
    return length_of(config.max_length)


def length_of(length: Length, place: str = "searcher.max_length") -> int:
    """Return the number of a length in its own unit. ConfigError: it is below 1."""
    if length.n < 1:
        raise ConfigError(f"{place} is {length}; give 1 or more")
    return length.n


def length_if_any(length: Length | None) -> int | None:
    """Return the number of a length, or None if the trial ends by itself."""
    return None if length is None else length_of(length)
