"""`name: auto`: which sampler and schedule a search uses, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Auto,
    Categorical,
    Combined,
    Double,
    Hyperband,
    Hyperparameter,
    Int,
    Random,
    Rungs,
    SearcherConfig,
)
from det_core.errors import ConfigError

from ..space import Limits, count_steps, leaves
from ._sampler import Evolution
from ._uniform import grid

_HALVING = {1: (3, 3.0), 2: (4, 2.5)}
"""Rungs and divisor by the version of the choice."""
_FEWEST_FOR_RUNGS = 4
_LARGEST_GRID = 1000
UNLIMITED = 1_000_000
"""The largest number of trials where only time ends the search."""


@dataclass(frozen=True)
class Choice:
    """The sampler and schedule that `auto` chose, as settings, and the reason in a sentence."""

    config: Combined
    why: str

    def __str__(self) -> str:
        schedule: str = self.config.schedule
        if schedule == "async_halving":
            schedule += f" ({self.config.num_rungs} rungs, divisor {self.config.divisor:g})"
        return f"sampler {self.config.sampler}, schedule {schedule}: {self.why}"


def choose(config: Auto, hyperparameters: Mapping[str, Hyperparameter]) -> Choice:
    """Return the sampler and schedule for a search.

    They depend on the configuration alone, so that a resume chooses the same. They follow
    `benchmarks/search_regret.py`: halving beats full trainings at every budget, a first look at
    trials after a sixteenth of the length beats later ones, and learning pays from about 40 trials
    on.
    """
    most_rungs, divisor = _HALVING[config.choice]
    if config.max_trials is None and config.max_hours is None:
        raise ConfigError(
            "searcher.max_trials is missing; give the number of trials to make, or max_hours"
        )
    trials, length = config.max_trials or UNLIMITED, config.max_length
    many = (
        "as many trials as there is time for" if config.max_trials is None else f"{trials} trials"
    )
    why: list[str] = []
    sampler = "random"
    if not config.learn_from and _size(hyperparameters, trials, config.constraints) is not None:
        sampler = "grid"
        why.append(f"the space has no more than {min(trials, _LARGEST_GRID)} choices")
    elif config.learn_from:
        sampler = "evolution"
        why.append("it begins with the results of earlier experiments")
    elif trials > Evolution.BEGINNING:
        sampler = "evolution"
        why.append(f"it learns after the first {Evolution.BEGINNING} of {many}")
    else:
        why.append(f"{trials} trials are too few to learn from")
    halved, rungs = False, 1
    if length is None:
        why.append("without max_length, each trial ends by itself")
    elif length.n < divisor:
        why.append(f"{length} are too short to stop trials early")
    elif trials < _FEWEST_FOR_RUNGS:
        why.append(f"of {trials} trials none is stopped early")
    else:
        halved = True
        most_rungs = min(most_rungs, int(math.log(length.n, divisor) + 1e-9) + 1)
        # With more rungs than the trials fill, none would train all of the length.
        left = trials
        while rungs < most_rungs and (left := int(left / divisor)):
            rungs += 1
        why.append(f"poor trials need not train all {length}")
    common: dict[str, Any] = {
        name: getattr(config, name)
        for name in config.__struct_fields__
        if name in Combined.__struct_fields__ and name != "max_trials"
    }
    pair = Combined(
        **common,
        sampler=sampler,
        schedule="async_halving" if halved else "full",
        num_rungs=rungs,
        divisor=divisor,
        max_trials=trials,
    )
    return Choice(pair, "; ".join(why))


def _size(
    hyperparameters: Mapping[str, Hyperparameter], most: int, constraints: tuple[str, ...]
) -> int | None:
    """Return the number of choices of a space.

    None: it exceeds `most`, or it cannot be counted.
    """
    points = 1
    for _, hp in leaves(hyperparameters):
        if isinstance(hp, Categorical):
            points *= len(hp.vals)
        elif isinstance(hp, Double) and hp.step is not None:
            points *= count_steps(hp)
        elif isinstance(hp, Int) and not hp.log and (hp.step is not None or hp.count is None):
            points *= count_steps(hp)
            if hp.step is None:
                # A grid would need a count.
                return None
        elif hp.__struct_config__.tag != "const":
            return None
    if points == 1 or points > _LARGEST_GRID:
        return None
    found = len(grid(hyperparameters, Limits(hyperparameters, constraints)))
    return found if found <= most else None


def as_named(config: object, hyperparameters: Mapping[str, Hyperparameter]) -> object:
    """Return the settings of the named searcher with the same schedule.

    `config` is a pair of sampler and schedule, or `auto`. Settings of a named searcher are returned
    unchanged.
    """
    if isinstance(config, Auto):
        config = choose(config, hyperparameters).config
    if not isinstance(config, Combined):
        return config
    common: dict[str, Any] = {
        name: getattr(config, name) for name in SearcherConfig.__struct_fields__
    }
    if config.schedule == "hyperband" and config.max_length is not None:
        return Hyperband(**common, max_length=config.max_length, divisor=config.divisor)
    trials = config.max_trials or 1
    if config.sampler == "grid":
        points = len(grid(hyperparameters, Limits(hyperparameters, config.constraints)))
        trials = min(config.max_trials or points, points)
    common |= {name: getattr(config, name) for name in Rungs.__struct_fields__} | {
        "max_trials": trials
    }
    if config.schedule == "adaptive_asha":
        return AdaptiveAsha(
            **common,
            mode=config.mode,
            max_rungs=config.max_rungs,
            bracket_rungs=config.bracket_rungs,
        )
    if config.schedule == "async_halving":
        return AsyncHalving(**common, num_rungs=config.num_rungs)
    if config.max_time is not None:
        return AsyncHalving(**common, num_rungs=1)
    return Random(
        **{name: value for name, value in common.items() if name in Random.__struct_fields__}
    )
