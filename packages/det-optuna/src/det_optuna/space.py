"""Converts an experiment's ranges to Optuna's distributions, and suggestions to hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError
from det_driver.search import Limits, count_steps, step_at

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_ABSENT: Any = object()
Range = Int | Double | Log | Categorical


class Space:
    """The hyperparameters of a search in Optuna's form.

    They are flat, without constants, and a nested one is `outer.inner`. A `log` is represented by
    its exponent. A `categorical` is represented by the position of its value, so that any value is
    possible. Hyperparameters that a trial does not have are not suggested.
    """

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], limits: Limits | None = None
    ) -> None:
        self.limits = Limits(hyperparameters) if limits is None else limits
        self._hyperparameters = hyperparameters
        self.distributions: dict[str, BaseDistribution] = {}
        conditions: dict[str, Mapping[str, Any]] = {}
        for name, each in _ranges(hyperparameters, ""):
            if name in self.distributions:
                raise ConfigError(
                    f"hyperparameters.{name} is there twice, once nested; rename one of them"
                )
            self.distributions[name] = _distribution(each)
            conditions[name] = each.when or {}
        self._conditional = any(conditions.values())
        order = [
            *TopologicalSorter({name: [*when] for name, when in conditions.items()}).static_order()
        ]
        self._in_order = [name for name in order if name in self.distributions]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return what a sampler suggests for a trial that the study has just created."""
        if not self._conditional:
            return {name: _suggest(trial, name, each) for name, each in self.distributions.items()}
        params: dict[str, Any] = {name: _lowest(each) for name, each in self.distributions.items()}
        for name in self._in_order:
            if name not in self.limits.absent(self._whole(params)):
                params[name] = _suggest(trial, name, self.distributions[name])
        return params

    def hparams(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the hyperparameters for a suggestion, or None if constraints refuse them."""
        return self.limits.admit(self._whole(params))

    def params(self, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """Return the suggestion that would give these hyperparameters.

        Values that are missing, or that their ranges do not contain, are left out. A number is
        rounded to the nearest step of its range.
        """
        found: dict[str, Any] = {}
        for name, each in _ranges(self._hyperparameters, ""):
            here: Any = hparams
            for part in name.split("."):
                here = here.get(part, _ABSENT) if isinstance(here, Mapping) else _ABSENT
            value = _ABSENT if here is _ABSENT else _param(each, here)
            if value is not _ABSENT and self.distributions[name]._contains(value):
                found[name] = value
        return found

    def _whole(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return _nested(self._hyperparameters, params, "")


def _ranges(
    hyperparameters: Mapping[str, Hyperparameter], prefix: str
) -> Iterator[tuple[str, Range]]:
    for name in sorted(hyperparameters):
        each = hyperparameters[name]
        if isinstance(each, Mapping):
            yield from _ranges(each, f"{prefix}{name}.")
        elif not isinstance(each, Const):
            yield f"{prefix}{name}", each


def _distribution(each: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match each:
        case Int(minval=low, maxval=high, log=True):
            return IntDistribution(low, high, log=True)
        case Int() | Double() if each.step is not None:
            # The parameter is the number of the step.
            return IntDistribution(0, count_steps(each) - 1)
        case Int(minval=low, maxval=high):
            return IntDistribution(low, high)
        case Double(minval=low, maxval=high) | Log(minval=low, maxval=high):
            return FloatDistribution(low, high)
        case Categorical(vals=vals, ordered=True):
            return IntDistribution(0, len(vals) - 1)
        case Categorical(vals=vals):
            return CategoricalDistribution(tuple(range(len(vals))))


def _suggest(trial: Trial, name: str, each: Any) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(each, IntDistribution):
        return trial.suggest_int(name, each.low, each.high, log=each.log)
    if isinstance(each, FloatDistribution):
        return trial.suggest_float(name, each.low, each.high)
    return trial.suggest_categorical(name, each.choices)


def _param(each: Range, value: Any) -> Any:
    """Return the representation of a value in Optuna, or _ABSENT if the range cannot have it."""
    if isinstance(each, Categorical):
        return next((i for i, other in enumerate(each.vals) if other == value), _ABSENT)
    if not isinstance(value, int | float):
        return _ABSENT
    if isinstance(each, Log):
        return math.log(value, each.base) if value > 0 else _ABSENT
    if each.step is not None:
        return round((value - each.minval) / each.step)
    return round(value) if isinstance(each, Int) else float(value)


def _lowest(each: Any) -> Any:
    return getattr(each, "low", 0)


def _nested(
    hyperparameters: Mapping[str, Hyperparameter], params: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    return {
        name: _value(each, params, f"{prefix}{name}")
        for name, each in sorted(hyperparameters.items())
    }


def _value(each: Hyperparameter, params: Mapping[str, Any], name: str) -> Any:
    match each:
        case Const(val=val):
            return deepcopy(val)
        case Categorical(vals=vals):
            return deepcopy(vals[params[name]])
        case Log(base=base):
            return base ** params[name]
        case Int() | Double():
            return params[name] if each.step is None else step_at(each, params[name])
        case _:
            return _nested(each, params, f"{name}.")
