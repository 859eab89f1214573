"""Searches that train every trial to one length: random, single and grid."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

from ..space import Limits, count_steps, int_at, step_at
from ._sampling import own
from ._search import Method, TrialFactory
from .base import Close, Exit, Operation, Train


class UniformSearch(Method):
    """Trains trials to one length, with random hyperparameters or the `points` of a grid.

    - `max_trials` trials are trained to `max_length`.
    - A grid is tried from its last point to its first.
    - At most `max_concurrent_trials` are open at a time (0: no limit).
    - With `replace_invalid`, a trial that raises InvalidHP is replaced and does not count.
    - Without `max_length`, each trial ends by itself.
    """

    def __init__(
        self,
        max_trials: int,
        *,
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
        replace_invalid: bool = False,
        points: Points | AdmittedPoints | None = None,
    ) -> None:
        self._max_trials = max_trials
        self._added = 0
        self._max_concurrent = max_concurrent_trials or sys.maxsize
        self._max_length = max_length
        self._replace_invalid = replace_invalid
        self._points = points
        self._invalid = 0
        self._finished = 0

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return [
            op
            for _ in range(min(self._max_trials, self._max_concurrent))
            for op in self._next(factory)
        ]

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        if self._max_length is None or length < self._max_length:
            return []
        return [Close(trial)]

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        if reason is Exit.INVALID_HP and self._replace_invalid and factory.replaces and not closed:
            self._invalid += 1
        else:
            self._finished += 1
        return self._next(factory)

    def extend(self, factory: TrialFactory, count: int) -> list[Operation]:
        if self._points is not None and count > len(factory.waiting):
            raise ConfigError(
                "a grid tries each of its points once, and has no more; enqueue other trials"
                " instead"
            )
        self._added += count
        running = factory.count - self._invalid - self._finished
        return [
            op
            for _ in range(min(count, self._max_concurrent - running))
            for op in self._next(factory)
        ]

    def progress(self, going: Mapping[int, float]) -> float:
        return (self._finished + sum(going.values())) / (self._max_trials + self._added)

    def state(self) -> dict[str, Any]:
        added = {"added": self._added} if self._added else {}
        return {"invalid": self._invalid, "finished": self._finished, **added}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._invalid = state["invalid"]
        self._finished = state["finished"]
        self._added = state.get("added", 0)

    def _next(self, factory: TrialFactory) -> list[Operation]:
        left = self._max_trials + self._added - (factory.count - self._invalid)
        if not left:
            return []
        points = None if factory.waiting else self._points
        create = factory.create(None if points is None else points[left - 1])
        return [create, Train(create.trial, self._max_length)]


class Points:
    """The Cartesian product of all axes, over sorted keys at every depth, the first key slowest.

    Points are computed on access, so that a large grid takes no memory.
    """

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], place: str = "hyperparameters"
    ) -> None:
        self._axes = [
            (name, _axis(hyperparameters[name], f"{place}.{name}"))
            for name in sorted(hyperparameters)
        ]

    def __len__(self) -> int:
        return math.prod(len(axis) for _, axis in self._axes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        point = {}
        for name, axis in reversed(self._axes):
            index, step = divmod(index, len(axis))
            point[name] = own(axis[step])
        return dict(reversed(point.items()))


class AdmittedPoints:
    """The points of a grid that the constraints allow.

    Points that differ only in hyperparameters that the trial does not have count as one.
    """

    def __init__(self, points: Points, limits: Limits) -> None:
        self._points = points
        self._limits = limits
        self._numbers = array("q")
        seen: set[str] = set()
        for number in range(len(points)):
            hparams = limits.admit(points[number])
            if hparams is not None and (key := repr(hparams)) not in seen:
                seen.add(key)
                self._numbers.append(number)
        if not self._numbers:
            raise ConfigError(
                "searcher.constraints refuse every point of the grid; give values that they allow"
            )

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._limits.prune(self._points[self._numbers[index]])


def grid(hyperparameters: Mapping[str, Hyperparameter], limits: Limits) -> Points | AdmittedPoints:
    """Return the points of a grid, without those that the limits of the space exclude."""
    points = Points(hyperparameters)
    return AdmittedPoints(points, limits) if limits else points


def _axis(hyperparameter: Hyperparameter, place: str) -> Points | list[Any]:
    match hyperparameter:
        case Const(val=val):
            return [val]
        case Categorical(vals=vals):
            return list(vals)
        case Int(log=True, count=count):
            places = _line(0, 1, _counted(count, place))
            return list(dict.fromkeys(int_at(hyperparameter, at) for at in places))
        case Int() | Double() if hyperparameter.step is not None:
            steps = count_steps(hyperparameter)
            positions = steps if hyperparameter.count is None else min(hyperparameter.count, steps)
            return [
                step_at(hyperparameter, _round(number)) for number in _line(0, steps - 1, positions)
            ]
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
        raise ConfigError(
            f"{place}: grid search is in use but count was not provided; give a count of 1 or more"
        )
    return count


def _line(low: float, high: float, count: int) -> list[float]:
    if count == 1:
        return [(low + high) / 2]
    return [low + i * (high - low) / (count - 1) for i in range(count)]


def _round(value: float) -> int:
    """Round half away from zero, as Go does and Python does not."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
