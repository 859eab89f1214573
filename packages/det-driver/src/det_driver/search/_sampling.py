"""Choosing hyperparameters at random, as Determined does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log

from ._rng import RandomState

Draw = Callable[[RandomState], Any]


def sampler(hyperparameters: Mapping[str, Hyperparameter]) -> Draw:
    """Return what draws one value for each hyperparameter, in sorted order at every depth.

    The order matters: it decides which random number becomes which hyperparameter. Determined sorts the outermost
    keys only and takes nested ones as they come, so that its nested searches cannot be repeated.
    """
    parts = [(name, draw_of(hyperparameters[name])) for name in sorted(hyperparameters)]
    return lambda rng: {name: draw(rng) for name, draw in parts}


def draw_of(hyperparameter: Hyperparameter) -> Draw:
    """Return what draws a value of one hyperparameter."""
    match hyperparameter:
        case Int(minval=smallest, maxval=largest):
            return lambda rng: smallest + rng.below(largest - smallest + 1)
        case Double(minval=low, maxval=high):
            return lambda rng: rng.uniform(low, high)
        case Log(minval=low, maxval=high, base=base):
            return lambda rng: base ** rng.uniform(low, high)
        case Categorical(vals=vals):
            return lambda rng: own(vals[rng.below(len(vals))])
        case Const(val=val):
            return lambda _: own(val)
        case _:
            return sampler(hyperparameter)


def own(value: Any) -> Any:
    """Return a value that a trial may change without changing another trial's."""
    return deepcopy(value) if isinstance(value, list | dict) else value
