"""Makes the searcher of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from det_core import config as settings
from det_core.config import Hyperparameter, Length
from det_core.errors import ConfigError, PluginError

from ..space import Limits
from ._auto import choose
from ._budget import Budgeted
from ._combined import combined
from ._custom import CustomSearch, import_class
from ._hyperband import SyncHalving, hyperband_brackets
from ._pbt import PBT
from ._sampler import Evolution
from ._schedules import adaptive_asha, async_halving, length_if_any, length_of
from ._search import Method, Search, Tournament
from ._uniform import UniformSearch, grid
from .base import Objective, Searcher

Make = Callable[..., Any]


def make(config: object, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Searcher:
    """Return the built-in searcher of these settings. Records of plugins make the others.

    The same settings and seed (`reproducibility.experiment_seed`) give the same search.

    ConfigError: a range of a grid has no count.
    """
    if isinstance(config, settings.Custom):
        return _custom(config, hyperparameters, seed)
    if isinstance(config, settings.Auto):
        config = choose(config, hyperparameters).config
    if isinstance(config, settings.Combined):
        return combined(config, hyperparameters, seed, {})
    limits = Limits(
        hyperparameters, config.constraints if isinstance(config, settings.SearcherConfig) else ()
    )
    method = _method(config, hyperparameters, limits)
    if getattr(config, "sampler", "random") == "random":
        return Search(method, hyperparameters, seed, limits=limits)
    assert isinstance(config, settings.SearcherConfig)
    objective = Objective(config.metric, config.smaller_is_better)
    return Search(
        method, hyperparameters, seed, Evolution(hyperparameters, limits), objective, limits
    )


def made(
    config: settings.SearcherConfig,
    hyperparameters: Mapping[str, Hyperparameter],
    seed: int,
    make: Make,
    samplers: Mapping[str, Make] | None = None,
) -> Searcher:
    """Return the searcher that `make`, of a plugin or built in, makes of these settings.

    `samplers` are those of plugins, by name.

    ConfigError: the settings have constraints, which the searcher does not support.
    """
    if isinstance(config, settings.Combined):
        searcher: Searcher = combined(config, hyperparameters, seed, samplers or {})
    else:
        searcher = make(config, hyperparameters, seed)
    known = () if searcher.limits is None else searcher.limits.constraints
    if tuple(getattr(config, "constraints", ())) != known:
        raise ConfigError(
            f"searcher.constraints are given, and the searcher {config.name} knows of none; leave"
            " them out, raise det_core.InvalidHP in the trial instead, or let the searcher set its"
            " `limits`"
        )
    length = getattr(config, "max_length", None) or getattr(config, "length_per_round", None)
    unit = length.unit if isinstance(length, Length) else getattr(config, "time_metric", None)
    if getattr(config, "learn_from", ()):
        # A searcher that does not learn raises an error here, before anything is trained.
        searcher.learn(())
    most, stop_when = getattr(config, "max_epochs_total", None), getattr(config, "stop_when", None)
    if most is not None and unit != "epochs":
        raise ConfigError(
            f"searcher.max_epochs_total is {most}, and lengths are in {unit or 'no unit'}; give"
            " max_length in epochs"
        )
    return Budgeted(searcher, stop_when, most)


def _method(
    config: object, hyperparameters: Mapping[str, Hyperparameter], limits: Limits
) -> Method:
    match config:
        case settings.Single():
            return UniformSearch(1, max_length=length_if_any(config.max_length))
        case settings.Random():
            return UniformSearch(
                config.max_trials,
                max_concurrent_trials=config.max_concurrent_trials,
                max_length=length_if_any(config.max_length),
                replace_invalid=True,
            )
        case settings.Grid():
            points = grid(hyperparameters, limits)
            return UniformSearch(
                len(points),
                max_concurrent_trials=config.max_concurrent_trials,
                max_length=length_if_any(config.max_length),
                points=points,
            )
        case settings.AsyncHalving():
            return async_halving(config, config.max_trials)
        case settings.AdaptiveAsha():
            return adaptive_asha(config)
        case settings.Hyperband():
            objective = Objective(config.metric, config.smaller_is_better)
            brackets = hyperband_brackets(length_of(config.max_length), config.divisor)
            return Tournament([SyncHalving(objective, rungs) for rungs in brackets])
        case settings.Pbt():
            return PBT(
                config,
                hyperparameters,
                limits,
                length_of(config.length_per_round, "searcher.length_per_round"),
            )
        case _:
            raise PluginError(
                f"{type(config).__name__} is no built-in searcher's settings; make it by its record"
            )


def _custom(
    config: settings.Custom, hyperparameters: Mapping[str, Hyperparameter], seed: int
) -> CustomSearch:
    """Return the searcher of `searcher.entrypoint`: a class, called with these three arguments.

    The user's code must be importable already.

    EntrypointError: there is no such class.
    """
    construct: Callable[..., Searcher] = import_class(
        "searcher.entrypoint", config.entrypoint, Searcher
    )
    return CustomSearch(construct(config, hyperparameters, seed))
