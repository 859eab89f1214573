"""A sampler and a schedule, chosen independently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from det_core import config as settings
from det_core.config import Hyperparameter
from det_core.errors import ConfigError, did_you_mean

from ..space import Limits
from ._custom import import_class
from ._hyperband import SyncHalving, hyperband_brackets
from ._sampler import Evolution, Sampler
from ._sampling import RandomState
from ._schedules import adaptive_asha, asha_bracket, async_halving, length_if_any, length_of
from ._search import Method, Search, Tournament
from ._sobol import Sobol
from ._uniform import AdmittedPoints, Points, UniformSearch, grid
from .base import Exit, Objective

Make = Callable[..., Any]
OURS = ("random", "grid", "sobol", "evolution")


def combined(
    config: settings.Combined,
    hyperparameters: Mapping[str, Hyperparameter],
    seed: int,
    samplers: Mapping[str, Make],
) -> Search:
    """Return the search with this sampler and schedule. `samplers` are those of plugins, by name.

    ConfigError: the two do not fit together.
    """
    limits = Limits(hyperparameters, config.constraints)
    sampler = _sampler(config, hyperparameters, limits, samplers)
    method = _schedule(config, _trials(config, sampler))
    objective = Objective(config.metric, config.smaller_is_better)
    return Search(method, hyperparameters, seed, sampler, objective, limits)


class GridSampler(Sampler):
    """Proposes the points of a grid, from the last to the first."""

    def __init__(self, points: Points | AdmittedPoints) -> None:
        self._points = points
        self._left = len(points)

    @property
    def most(self) -> int:
        return len(self._points)

    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        self._left -= 1
        return self._points[self._left]

    def adopt(self, trial: int, hparams: Mapping[str, Any]) -> None:
        pass

    def validated(self, trial: int, length: float, loss: float) -> None:
        pass

    def exited(self, trial: int, reason: Exit) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"left": self._left}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._left = state["left"]


def _sampler(
    config: settings.Combined,
    hyperparameters: Mapping[str, Hyperparameter],
    limits: Limits,
    samplers: Mapping[str, Make],
) -> Sampler | None:
    name = config.sampler
    if name in OURS and config.sampler_options:
        raise ConfigError(
            f"searcher.sampler_options are given, and the sampler {name} has none; leave them out"
        )
    if name == "random":
        return None
    if name == "grid":
        return GridSampler(grid(hyperparameters, limits))
    if name == "sobol":
        return Sobol(hyperparameters, limits)
    if name == "evolution":
        return Evolution(hyperparameters, limits)
    if ":" in name:
        make = import_class("searcher.sampler", name, Sampler)
    elif name in samplers:
        make = samplers[name]
    else:
        known = (*OURS, *samplers)
        near = (
            did_you_mean(name, known) or f"; known: {', '.join(known)}, or your own as module:Class"
        )
        plugin = (
            "; it comes with det-optuna"
            if name in ("tpe", "gp", "cmaes", "qmc", "nsgaii")
            else near
        )
        raise ConfigError(f"searcher.sampler is {name!r}, and there is no such sampler{plugin}")
    sampler: Sampler = make(config, hyperparameters, limits)
    return sampler


def _trials(config: settings.Combined, sampler: Sampler | None) -> int:
    """Return the number of trials, or 0 if the schedule determines it."""
    most = None if sampler is None else sampler.most
    if config.schedule == "hyperband":
        if config.max_trials is not None:
            raise ConfigError(
                "searcher.max_trials is given, and hyperband makes as many trials as its brackets"
                " need; leave it out, or take the schedule adaptive_asha"
            )
        if most is not None:
            raise ConfigError(
                f"searcher.sampler is {config.sampler!r}, of {most} trials, and hyperband makes as"
                " many as its brackets need; take the schedule async_halving or full"
            )
        return 0
    if config.max_trials is None and most is None:
        raise ConfigError("searcher.max_trials is missing; give the number of trials to make")
    return min(each for each in (config.max_trials, most) if each is not None)


def _schedule(config: settings.Combined, trials: int) -> Method:
    by_time = config.max_time is not None
    if config.use_idle_slots and config.schedule not in ("async_halving", "adaptive_asha"):
        raise ConfigError(
            f"searcher.use_idle_slots is given, and the schedule {config.schedule} stops no trial"
            " early; take the schedule async_halving or adaptive_asha, or leave it out"
        )
    match config.schedule:
        case "full" if not by_time:
            return UniformSearch(
                trials,
                max_concurrent_trials=config.max_concurrent_trials,
                max_length=length_if_any(config.max_length),
                replace_invalid=True,
            )
        case "full":
            return asha_bracket(config, 1, trials, config.max_concurrent_trials or trials)
        case "async_halving":
            return async_halving(config, trials)
        case "adaptive_asha":
            return adaptive_asha(config, trials)
        case "hyperband":
            if by_time or config.max_length is None:
                raise ConfigError(
                    "searcher.schedule is hyperband, which needs max_length, such as {epochs: 27}"
                )
            objective = Objective(config.metric, config.smaller_is_better)
            brackets = hyperband_brackets(length_of(config.max_length), config.divisor)
            at_once = config.max_concurrent_trials
            return Tournament(
                [SyncHalving(objective, rungs, at_once) for rungs in brackets], in_turn=True
            )
