"""Optuna's samplers by their names in a configuration, and control of Optuna's output."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from det_core.errors import ConfigError, PluginError

from .config import Optuna

if TYPE_CHECKING:
    from numpy.random import RandomState
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class _Kind:
    """A sampler: its class in `optuna.samplers`, the packages it needs, and its abilities."""

    sampler: str
    needs: tuple[str, ...] = ()
    startup: bool = True
    two_metrics: bool = True


_KINDS = {
    "cmaes": _Kind("CmaEsSampler", ("cmaes",), two_metrics=False),
    "gp": _Kind("GPSampler", ("scipy", "torch")),
    "nsgaii": _Kind("NSGAIISampler", startup=False),
    "qmc": _Kind("QMCSampler", ("scipy",), startup=False),
    "random": _Kind("RandomSampler", startup=False),
    "tpe": _Kind("TPESampler"),
}
_OURS = {"seed": "reproducibility.experiment_seed", "n_startup_trials": "searcher.startup_trials"}
_PLAIN: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict[str, Any]": (dict,),
    "float": (int, float),
    "int": (int,),
    "str": (str,),
}


def sampler_of(config: Optuna, seed: int) -> BaseSampler:
    """Return the sampler of these settings.

    Raises PluginError if a package that it needs is missing, and ConfigError if an option does not
    fit it.
    """
    kind = _KINDS[config.sampler]
    _require("optuna", "searcher.name is 'optuna'")
    for package in kind.needs:
        _require(package, f"searcher.sampler is {config.sampler!r}")
    _check_abilities(config, kind)
    import optuna

    sampler = getattr(optuna.samplers, kind.sampler)
    options = dict(config.sampler_options)
    _check_options(config.sampler, sampler, options)
    if config.startup_trials is not None:
        options["n_startup_trials"] = config.startup_trials
    if config.sampler == "tpe":
        # Otherwise suggestions for concurrent trials are close to each other.
        options.setdefault("constant_liar", True)
    try:
        with quiet():
            made: BaseSampler = sampler(seed=seed, **options)
    except ValueError as error:
        raise ConfigError(
            f"searcher.sampler_options is {options}, which the sampler refuses: {error}"
        ) from None
    return made


def generators(sampler: BaseSampler) -> list[RandomState]:
    """Return the random generators of a sampler that has no other state.

    Return an empty list for a sampler that has more, such as a model.
    """
    from numpy.random import RandomState
    from optuna.samplers import BaseSampler, RandomSampler, TPESampler

    if not isinstance(sampler, RandomSampler | TPESampler):
        return []
    found: list[RandomState] = []
    for each in vars(sampler).values():
        if isinstance(each, BaseSampler):
            found += generators(each)
        elif isinstance(rng := getattr(each, "rng", None), RandomState):
            found.append(rng)
    return found


def _require(package: str, because: str) -> None:
    if find_spec(package) is None:
        raise PluginError(
            f"{because}, which needs {package}, and that is not installed; try: pip install"
            f" {package}"
        )


def _check_abilities(config: Optuna, kind: _Kind) -> None:
    if config.startup_trials is not None and not kind.startup:
        able = ", ".join(name for name, each in _KINDS.items() if each.startup)
        raise ConfigError(
            f"searcher.startup_trials is {config.startup_trials}, and the sampler {config.sampler}"
            f" has no such phase; leave it out, or take one of {able}"
        )
    if config.second_metric is not None and not kind.two_metrics:
        able = ", ".join(name for name, each in _KINDS.items() if each.two_metrics)
        raise ConfigError(
            f"searcher.second_metric is {config.second_metric!r}, and the sampler {config.sampler}"
            f" takes one metric; leave it out, or take one of {able}"
        )


def _check_options(name: str, sampler: type, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(sampler).parameters
    kinds = {key: each for key, each in parameters.items() if key not in _OURS and _types(each)}
    for key, value in options.items():
        at = f"searcher.sampler_options.{key}"
        if key in _OURS:
            raise ConfigError(f"{at} is det's to give; set {_OURS[key]}")
        if key not in parameters:
            raise ConfigError(
                f"{at} is no option of the sampler {name}; it takes {', '.join(sorted(kinds))}"
            )
        if key not in kinds:
            raise ConfigError(
                f"{at} is an object, which YAML cannot hold; give some of"
                f" {', '.join(sorted(kinds))}"
            )
        if not _suits(value, kinds[key]):
            raise ConfigError(
                f"{at} is {value!r}; the sampler {name} wants {kinds[key].annotation}"
            )


def _types(parameter: inspect.Parameter) -> tuple[type, ...]:
    """Return the types that an option's annotation allows, or nothing if YAML cannot hold them."""
    parts = [part.strip() for part in str(parameter.annotation).split("|")]
    return tuple(each for part in parts for each in _PLAIN.get(part, ()))


def _suits(value: Any, parameter: inspect.Parameter) -> bool:
    if value is None:
        return "None" in str(parameter.annotation)
    types = _types(parameter)
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's log and its warnings about experimental features.

    Restore its settings afterwards.
    """
    from optuna.exceptions import ExperimentalWarning

    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)
