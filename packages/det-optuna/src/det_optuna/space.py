"""From the ranges of an experiment to Optuna's distributions, and back to hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Range = Int | Double | Log | Categorical


class Space:
    """The hyperparameters of a search as Optuna sees them: flat, without constants, a nested one as `outer.inner`.

    A `log` is its exponent, a `categorical` the position of its value, so that any value can be one.
    """

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter]) -> None:
        self._hyperparameters = hyperparameters
        self.distributions: dict[str, BaseDistribution] = {}
        for name, each in _ranges(hyperparameters, ""):
            if name in self.distributions:
                raise ConfigError(f"hyperparameters.{name} is there twice, once nested; rename one of them")
            self.distributions[name] = _distribution(each)

    def hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a trial for which Optuna suggests `params`."""
        return _nested(self._hyperparameters, params, "")


def _ranges(hyperparameters: Mapping[str, Hyperparameter], prefix: str) -> Iterator[tuple[str, Range]]:
    for name in sorted(hyperparameters):
        each = hyperparameters[name]
        if isinstance(each, Mapping):
            yield from _ranges(each, f"{prefix}{name}.")
        elif not isinstance(each, Const):
            yield f"{prefix}{name}", each


def _distribution(each: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match each:
        case Int(minval=low, maxval=high):
            return IntDistribution(low, high)
        case Double(minval=low, maxval=high) | Log(minval=low, maxval=high):
            return FloatDistribution(low, high)
        case Categorical(vals=vals):
            return CategoricalDistribution(tuple(range(len(vals))))


def _nested(hyperparameters: Mapping[str, Hyperparameter], params: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: _value(each, params, f"{prefix}{name}") for name, each in sorted(hyperparameters.items())}


def _value(each: Hyperparameter, params: Mapping[str, Any], name: str) -> Any:
    match each:
        case Const(val=val):
            return deepcopy(val)
        case Categorical(vals=vals):
            return deepcopy(vals[params[name]])
        case Log(base=base):
            return base ** params[name]
        case Int() | Double():
            return params[name]
        case _:
            return _nested(each, params, f"{name}.")
