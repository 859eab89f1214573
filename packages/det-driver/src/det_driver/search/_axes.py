"""The points of a grid over hyperparameters, as Determined places them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

from ._sampling import own


class Grid:
    """The Cartesian product of all axes, over sorted keys at every depth, the first key slowest.

    Points are computed when they are asked for, so that a large grid takes no memory.
    """

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter], place: str = "hyperparameters") -> None:
        self._axes = [(name, _axis(hyperparameters[name], f"{place}.{name}")) for name in sorted(hyperparameters)]

    def __len__(self) -> int:
        return math.prod(len(axis) for _, axis in self._axes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        point = {}
        for name, axis in reversed(self._axes):
            index, step = divmod(index, len(axis))
            point[name] = own(axis[step])
        return dict(reversed(point.items()))


def _axis(hyperparameter: Hyperparameter, place: str) -> Grid | list[Any]:
    match hyperparameter:
        case Const(val=val):
            return [val]
        case Categorical(vals=vals):
            return list(vals)
        case Int(minval=low, maxval=high, count=count):
            steps = min(_counted(count, place), high - low + 1)
            return [_round(value) for value in _line(low, high, steps)]
        case Double(minval=low, maxval=high, count=count):
            return _line(low, high, _counted(count, place))
        case Log(minval=low, maxval=high, count=count, base=base):
            return [base**exponent for exponent in _line(low, high, _counted(count, place))]
        case _:
            return Grid(hyperparameter, place)


def _counted(count: int | None, place: str) -> int:
    if count is None:
        raise ConfigError(f"{place}: grid search is in use but count was not provided; give a count of 1 or more")
    return count


def _line(low: float, high: float, count: int) -> list[float]:
    if count == 1:
        return [(low + high) / 2]
    return [low + i * (high - low) / (count - 1) for i in range(count)]


def _round(value: float) -> int:
    """Round half away from zero, as Go does and Python does not."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
