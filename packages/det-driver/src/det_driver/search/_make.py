"""From the searcher's section of a configuration to the searcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from det_core import config as settings
from det_core.config import Hyperparameter, Length
from det_core.errors import ConfigError, EntrypointError, PluginError

from ._asha import PromotionASHA, StoppingASHA
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
from ._uniform import GridSearch, RandomSearch
from .base import Objective, Searcher


def make(config: object, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Searcher:
    """Return the built-in searcher of these settings; a stranger's is made by its record.

    The same settings and seed (`reproducibility.experiment_seed`) give the same search.
    """
    maker = _MAKERS.get(type(config))
    if maker is None:
        raise PluginError(f"{type(config).__name__} is no built-in searcher's settings; make it by its record")
    return maker(config, hyperparameters, seed)


def _single(config: settings.Single, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a search of one trial, whose hyperparameters are drawn once; it is not replaced if they are invalid."""
    max_length = _length_if_any(config.max_length, "searcher.max_length")
    return Search(RandomSearch(max_trials=1, max_length=max_length, replace_invalid=False), hyperparameters, seed)


def _random(config: settings.Random, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a random search."""
    method = RandomSearch(
        max_trials=config.max_trials,
        max_concurrent_trials=config.max_concurrent_trials,
        max_length=_length_if_any(config.max_length, "searcher.max_length"),
    )
    return Search(method, hyperparameters, seed)


def _grid(config: settings.Grid, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a grid search; ConfigError where a range has no count."""
    method = GridSearch(
        hyperparameters,
        max_concurrent_trials=config.max_concurrent_trials,
        max_length=_length_if_any(config.max_length, "searcher.max_length"),
    )
    return Search(method, hyperparameters, seed)


def _async_halving(config: settings.AsyncHalving, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return one bracket of asynchronous successive halving."""
    method = _asha_bracket(config, config.num_rungs, config.max_trials, config.max_concurrent_trials)
    return Search(method, hyperparameters, seed)


def _adaptive_asha(config: settings.AdaptiveAsha, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return adaptive ASHA.

    Brackets differ in how early they stop trials, since nobody knows beforehand how early is right; `mode` or
    `bracket_rungs` says which there are. At least one trial of each bracket runs at a time.

    Source: Li et al. 2018, "Hyperband", JMLR 18(185), for the brackets; Li et al. 2020, "A System for Massively
    Parallel Hyperparameter Tuning", MLSys, for what runs in them.
    """
    brackets = [_asha_bracket(config, *bracket) for bracket in adaptive_brackets(config)]
    return Search(Tournament(brackets), hyperparameters, seed)


def _hyperband(config: settings.Hyperband, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return Hyperband: brackets of synchronous successive halving, side by side."""
    objective = Objective(config.metric, config.smaller_is_better)
    brackets = hyperband_brackets(_length(config.max_length, "searcher.max_length"), config.divisor)
    return Search(Tournament([SyncHalving(objective, rungs) for rungs in brackets]), hyperparameters, seed)


def _pbt(config: settings.Pbt, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return population-based training."""
    method = PBT(
        Objective(config.metric, config.smaller_is_better),
        hyperparameters,
        population_size=config.population_size,
        num_rounds=config.num_rounds,
        length_per_round=_length(config.length_per_round, "searcher.length_per_round"),
        truncate_fraction=config.replace_function.truncate_fraction,
        resample_probability=config.explore_function.resample_probability,
        perturb_factor=config.explore_function.perturb_factor,
    )
    return Search(method, hyperparameters, seed)


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


_MAKERS: dict[type, Callable[[Any, Mapping[str, Hyperparameter], int], Searcher]] = {
    settings.AdaptiveAsha: _adaptive_asha,
    settings.AsyncHalving: _async_halving,
    settings.Custom: _custom,
    settings.Grid: _grid,
    settings.Hyperband: _hyperband,
    settings.Pbt: _pbt,
    settings.Random: _random,
    settings.Single: _single,
}


def adaptive_brackets(config: settings.AdaptiveAsha) -> list[tuple[int, int, int]]:
    """Return each bracket's number of rungs, trials, and trials at a time."""
    most = useful_rungs(config.max_rungs, config.divisor, _longest(config), config.max_trials)
    rungs = sorted(config.bracket_rungs, reverse=True) or bracket_rungs(config.mode, most)
    trials = bracket_max_trials(config.max_trials, config.divisor, rungs)
    concurrent = bracket_max_concurrent_trials(config.max_concurrent_trials, config.divisor, trials)
    return list(zip(rungs, trials, concurrent, strict=False))


def _asha_bracket(
    config: settings.AsyncHalving | settings.AdaptiveAsha, num_rungs: int, max_trials: int, max_concurrent_trials: int
) -> Method:
    """Return a bracket: stopping by `max_time`, or with `stop_once`; else promotion by `max_length`."""
    objective = Objective(config.metric, config.smaller_is_better)
    lengths = rung_lengths(num_rungs, config.divisor, _longest(config))
    initial = initial_trials(max_concurrent_trials, max_trials, config.divisor, num_rungs)
    if config.max_time is None and not config.stop_once:
        return PromotionASHA(
            objective, lengths=lengths, divisor=config.divisor, max_trials=max_trials, initial_trials=initial
        )
    return StoppingASHA(
        objective,
        lengths=lengths,
        divisor=config.divisor,
        max_trials=max_trials,
        initial_trials=initial,
        time_metric=None if config.max_time is None else config.time_metric,
    )


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
    return _length(config.max_length, "searcher.max_length")


def _length(length: Length, place: str) -> int:
    """Return the number, in whichever unit; ConfigError where there is nothing to train."""
    if length.n < 1:
        raise ConfigError(f"{place} is {length}; give 1 or more")
    return length.n


def _length_if_any(length: Length | None, place: str) -> int | None:
    """Return the number, or None where the trial decides."""
    return None if length is None else _length(length, place)
