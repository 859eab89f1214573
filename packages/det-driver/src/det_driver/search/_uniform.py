"""Searches that train every trial to one length: random, single and grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

from ._sampling import own
from ._search import Births, Method
from .base import Close, Exit, Operation, Train


class UniformSearch(Method):
    """Trains `max_trials` trials, each to `max_length`, of hyperparameters drawn at random or of all the `points` of a grid.

    A grid is gone through from its last point to its first. At most `max_concurrent_trials` are open at a time (0: no
    limit). With `replace_invalid`, a trial that raises InvalidHP is replaced and does not count. `max_length` None
    leaves it to the trial to end.
    """

    def __init__(
        self,
        max_trials: int,
        *,
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
        replace_invalid: bool = False,
        points: Points | None = None,
    ) -> None:
        self._max_trials = max_trials
        self._max_concurrent = max_concurrent_trials or max_trials
        self._max_length = max_length
        self._replace_invalid = replace_invalid
        self._points = points
        self._invalid = 0
        self._finished = 0

    def begin(self, births: Births) -> list[Operation]:
        return [op for _ in range(min(self._max_trials, self._max_concurrent)) for op in self._next(births)]

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self._max_length is None or length < self._max_length:
            return []
        return [Close(trial)]

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        if reason is Exit.INVALID_HP and self._replace_invalid and not closed:
            self._invalid += 1
        else:
            self._finished += 1
        return self._next(births)

    def progress(self, going: Mapping[int, float]) -> float:
        return (self._finished + sum(going.values())) / self._max_trials

    def state(self) -> dict[str, Any]:
        return {"invalid": self._invalid, "finished": self._finished}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._invalid = state["invalid"]
        self._finished = state["finished"]

    def _next(self, births: Births) -> list[Operation]:
        left = self._max_trials - (births.count - self._invalid)
        if not left:
            return []
        create = births.create(None if self._points is None else self._points[left - 1])
        return [create, Train(create.trial, self._max_length)]


class Points:
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


def _axis(hyperparameter: Hyperparameter, place: str) -> Points | list[Any]:
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
            return Points(hyperparameter, place)


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
