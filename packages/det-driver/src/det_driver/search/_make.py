"""From the searcher's section of a configuration to the searcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from det_core import config as settings
from det_core.config import Hyperparameter, Length
from det_core.errors import ConfigError, EntrypointError, PluginError

from ._asha import Bracket, PromotionASHA, StoppingASHA
from ._custom import CustomSearch
from ._hyperband import SyncHalving, hyperband_brackets
from ._pbt import PBT
from ._rungs import (
    bracket_max_concurrent_trials,
    bracket_max_trials,
    bracket_rungs,
    initial_trials,
    rung_lengths,
    useful_rungs,
)
from ._search import Method, Search, Tournament
from ._uniform import Points, UniformSearch
from .base import Objective, Searcher


def make(config: object, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Searcher:
    """Return the built-in searcher of these settings; a stranger's is made by its record.

    The same settings and seed (`reproducibility.experiment_seed`) give the same search. ConfigError where a range of a grid
    has no count.
    """
    if isinstance(config, settings.Custom):
        return _custom(config, hyperparameters, seed)
    return Search(_method(config, hyperparameters), hyperparameters, seed)


def _method(config: object, hyperparameters: Mapping[str, Hyperparameter]) -> Method:
    match config:
        case settings.Single():
            return UniformSearch(1, max_length=_length_if_any(config.max_length))
        case settings.Random():
            return UniformSearch(
                config.max_trials,
                max_concurrent_trials=config.max_concurrent_trials,
                max_length=_length_if_any(config.max_length),
                replace_invalid=True,
            )
        case settings.Grid():
            points = Points(hyperparameters)
            return UniformSearch(
                len(points),
                max_concurrent_trials=config.max_concurrent_trials,
                max_length=_length_if_any(config.max_length),
                points=points,
            )
        case settings.AsyncHalving():
            return _asha_bracket(config, config.num_rungs, config.max_trials, config.max_concurrent_trials)
        case settings.AdaptiveAsha():
            return Tournament([_asha_bracket(config, *bracket) for bracket in adaptive_brackets(config)])
        case settings.Hyperband():
            objective = Objective(config.metric, config.smaller_is_better)
            brackets = hyperband_brackets(_length(config.max_length), config.divisor)
            return Tournament([SyncHalving(objective, rungs) for rungs in brackets])
        case settings.Pbt():
            return PBT(config, hyperparameters, _length(config.length_per_round, "searcher.length_per_round"))
        case _:
            raise PluginError(f"{type(config).__name__} is no built-in searcher's settings; make it by its record")


def _custom(config: settings.Custom, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> CustomSearch:
    """Return the searcher that `searcher.entrypoint` names: a class, called with these three arguments.

    The user's code has to be importable already. EntrypointError where there is no such class.
    """
    module, _, path = config.entrypoint.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise EntrypointError(f"searcher.entrypoint is {config.entrypoint!r}; there is no module {module}") from None
    for name in path.split("."):
        found = getattr(found, name, None)
    if not (isinstance(found, type) and issubclass(found, Searcher)):
        raise EntrypointError(f"searcher.entrypoint is {config.entrypoint!r}; name a class derived from Searcher")
    construct: Callable[..., Searcher] = found
    return CustomSearch(construct(config, hyperparameters, seed))


def adaptive_brackets(config: settings.AdaptiveAsha) -> list[tuple[int, int, int]]:
    """Return the number of rungs, of trials, and of trials at a time of each bracket of adaptive ASHA.

    Brackets differ in how early they stop trials, since nobody knows beforehand how early is right; `mode` or
    `bracket_rungs` says which there are. At least one trial of each bracket runs at a time.

    Source: Li et al. 2018, "Hyperband", JMLR 18(185), for the brackets; Li et al. 2020, "A System for Massively
    Parallel Hyperparameter Tuning", MLSys, for what runs in them.
    """
    most = useful_rungs(config.max_rungs, config.divisor, _longest(config), config.max_trials)
    rungs = sorted(config.bracket_rungs, reverse=True) or bracket_rungs(config.mode, most)
    trials = bracket_max_trials(config.max_trials, config.divisor, rungs)
    concurrent = bracket_max_concurrent_trials(config.max_concurrent_trials, config.divisor, trials)
    return list(zip(rungs, trials, concurrent, strict=False))


def _asha_bracket(
    config: settings.AsyncHalving | settings.AdaptiveAsha, num_rungs: int, max_trials: int, max_concurrent_trials: int
) -> Method:
    """Return a bracket: stopping by `max_time`, or with `stop_once`; else promotion by `max_length`."""
    bracket = Bracket(
        objective=Objective(config.metric, config.smaller_is_better),
        lengths=rung_lengths(num_rungs, config.divisor, _longest(config)),
        divisor=config.divisor,
        max_trials=max_trials,
        initial_trials=initial_trials(max_concurrent_trials, max_trials, config.divisor, num_rungs),
    )
    if config.max_time is None and not config.stop_once:
        return PromotionASHA(bracket)
    return StoppingASHA(bracket, None if config.max_time is None else config.time_metric)


def _longest(config: settings.AsyncHalving | settings.AdaptiveAsha) -> int:
    """Return how long the best trials train: `max_time` in units of `time_metric`, else `max_length`."""
    if config.max_time is not None:
        if config.time_metric is None:
            raise ConfigError(
                f"searcher.max_time is {config.max_time}, but there is no time_metric; name the validation metric "
                "that says how long a trial has trained, such as batches"
            )
        return config.max_time
    if config.max_length is None:
        raise ConfigError(f"searcher {config.name} has no length; give max_length, or max_time and time_metric")
    return _length(config.max_length)


def _length(length: Length, place: str = "searcher.max_length") -> int:
    """Return the number, in whichever unit; ConfigError where there is nothing to train."""
    if length.n < 1:
        raise ConfigError(f"{place} is {length}; give 1 or more")
    return length.n


def _length_if_any(length: Length | None) -> int | None:
    """Return the number, or None where the trial decides."""
    return None if length is None else _length(length)
