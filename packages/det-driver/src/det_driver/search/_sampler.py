"""Samplers choose a trial's hyperparameters from the reports of earlier trials."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log

from ..space import Limits, count_steps, int_at, int_place, leaves, same, step_at
from ._sampling import RandomState, own
from .base import Exit

Point = list[float]
Item = TypeVar("Item")


class Sampler(ABC):
    """Proposes hyperparameters, for any schedule.

    Pure: it has no I/O, no clock and no randomness except from the given `rng`. The same events
    give the same proposals. It gets the reports of trials before the schedule does. Trials of
    earlier experiments, which it adopts if it `learns`, have numbers below 0.
    """

    adopts: bool = True
    """Whether it accepts trials that it did not propose."""

    learns: bool = False
    """Whether results of earlier experiments help it."""

    @abstractmethod
    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        """Return the hyperparameters of a new trial."""

    def adopt(self, trial: int, hparams: Mapping[str, Any]) -> None:
        """Note a new trial with hyperparameters that it did not propose."""

    @property
    def most(self) -> int | None:
        """How many different trials it can propose, or None if there is no limit."""
        return None

    @abstractmethod
    def validated(self, trial: int, length: float, loss: float) -> None:
        """Handle the loss that an open trial has reported after `length`."""

    @abstractmethod
    def exited(self, trial: int, reason: Exit) -> None:
        """Handle the end of a trial."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the complete state in JSON's types."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""


class UnitCube:
    """The hyperparameters of a search as a unit cube with an axis for each range.

    Equal volumes are equally likely in a random search. A trial that lacks a hyperparameter has a
    position on its axis nevertheless.
    """

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], limits: Limits | None = None
    ) -> None:
        self._hyperparameters = hyperparameters
        self._limits = Limits(hyperparameters) if limits is None else limits
        found = [
            (name, each) for name, each in leaves(hyperparameters) if not isinstance(each, Const)
        ]
        self._names = [name for name, _ in found]
        self.axes: list[Range] = [each for _, each in found]

    def draw(self, rng: RandomState) -> tuple[Point, dict[str, Any]]:
        """Return a random point and its hyperparameters, distributed as in a random search."""
        point: Point = []

        def drawn() -> dict[str, Any]:
            point[:] = [_drawn(axis, rng) for axis in self.axes]
            return self._values(point)

        hparams = self._limits.draw(drawn)
        return point, hparams

    def hparams(self, point: Point) -> dict[str, Any] | None:
        """Return the hyperparameters at a point, or None if the constraints refuse them."""
        return self._limits.admit(self._values(point))

    def present(self, point: Point) -> list[int]:
        """Return the axes whose hyperparameters a trial at this point has."""
        absent = self._limits.absent(self._values(point)) if self._limits else ()
        return [number for number, name in enumerate(self._names) if name not in absent]

    def place(self, hparams: Mapping[str, Any]) -> Point:
        """Return the point of hyperparameters that were not proposed.

        Values outside a range are moved to its end.
        """
        return [
            _place(axis, _find(hparams, name))
            for name, axis in zip(self._names, self.axes, strict=True)
        ]

    def _values(self, point: Point) -> dict[str, Any]:
        return _values(self._hyperparameters, iter(point))


Range = Int | Double | Log | Categorical


def _steps(axis: Range) -> int | None:
    """Return the number of values of an axis, or None if it is continuous or unevenly spaced."""
    match axis:
        case Categorical(vals=vals):
            return len(vals)
        case Int(log=False):
            return count_steps(axis)
        case Double() if axis.step is not None:
            return count_steps(axis)
        case _:
            return None


def _drawn(axis: Range, rng: RandomState) -> float:
    steps = _steps(axis)
    return rng.random() if steps is None else (rng.below(steps) + 0.5) / steps


def _values(
    hyperparameters: Mapping[str, Hyperparameter], point: Iterator[float]
) -> dict[str, Any]:
    return {name: _value(hyperparameters[name], point) for name in sorted(hyperparameters)}


def _value(hyperparameter: Hyperparameter, point: Iterator[float]) -> Any:
    match hyperparameter:
        case Const(val=val):
            return own(val)
        case Categorical(vals=vals):
            return own(vals[_step(next(point), len(vals))])
        case Int(log=True):
            return int_at(hyperparameter, next(point))
        case Int():
            return step_at(hyperparameter, _step(next(point), count_steps(hyperparameter)))
        case Double() if hyperparameter.step is not None:
            return step_at(hyperparameter, _step(next(point), count_steps(hyperparameter)))
        case Double(minval=low, maxval=high):
            return low + next(point) * (high - low)
        case Log(minval=low, maxval=high, base=base):
            return float(base ** (low + next(point) * (high - low)))
        case _:
            return _values(hyperparameter, point)


def _step(at: float, steps: int) -> int:
    return min(int(at * steps), steps - 1)


def _place(axis: Range, value: Any) -> float:
    """Return the middle of a value's interval, or of the axis if it is none of its values."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match axis:
        case Categorical(vals=vals):
            found = next((i for i, each in enumerate(vals) if same(each, value)), None)
            return 0.5 if found is None else (found + 0.5) / len(vals)
        case _ if not number:
            return 0.5
        case Int(log=True):
            return int_place(axis, min(max(round(value), axis.minval), axis.maxval))
        case Int(minval=low) if (steps := _steps(axis)) is not None:
            return _within((round((value - low) / (axis.step or 1)) + 0.5) / steps)
        case Double(minval=low, step=float() | int() as step) if (
            steps := _steps(axis)
        ) is not None:
            return _within((round((value - low) / step) + 0.5) / steps)
        case Log(minval=low, maxval=high, base=base):
            return _within((math.log(value, base) - low) / (high - low)) if value > 0 else 0.0
        case _:
            return _within((value - axis.minval) / (axis.maxval - axis.minval))


def _within(at: float) -> float:
    return min(max(at, 0.0), 1.0)


def _find(hparams: Mapping[str, Any], name: str) -> Any:
    here: Any = hparams
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


class Observations(Generic[Item]):
    """The memory of a sampler that learns: an item for each open trial and for the best that ended.

    `pool` has the losses of the trials that trained about as long as the longest ones, because
    results of short training rank configurations badly. A longer length counts alone once `enough`
    trials have reached it. The pool holds at most `remembered` trials.

    With `all_lengths`, shorter trials stay in the pool and rank behind the longer ones. Then the
    oldest trial that is not among the best quarter is removed first.
    """

    ABOUT = 0.9
    """Lengths count as equal where one is at least this fraction of the other."""

    def __init__(self, enough: int, remembered: int, *, all_lengths: bool = False) -> None:
        self._all_lengths = all_lengths
        self._enough = enough
        self._remembered = remembered
        self.items: dict[int, Item] = {}
        # Length and loss of each trial.
        self.pool: dict[int, tuple[float, float]] = {}
        self._open: set[int] = set()
        self._silent: dict[int, None] = {}
        self._floor = 0.0

    def opened(self, trial: int, item: Item) -> None:
        """Add a new trial."""
        self.items[trial] = item
        self._open.add(trial)
        self._silent[trial] = None

    def validated(self, trial: int, length: float, loss: float) -> None:
        """Handle the report of an open trial."""
        self._silent.pop(trial, None)
        if length < self._floor:
            return
        self.pool[trial] = (length, loss)
        if self._all_lengths:
            if len(self.pool) > self._remembered:
                self._forget(min(self.best()[self._remembered // 4 :]))
            return
        longest = sorted((length for length, _ in self.pool.values()), reverse=True)
        if (
            len(longest) >= self._enough
            and (floor := self.ABOUT * longest[self._enough - 1]) > self._floor
        ):
            self._floor = floor
            for each in [t for t, (length, _) in self.pool.items() if length < floor]:
                self._forget(each)
        if len(self.pool) > self._remembered:
            self._forget(max(self.pool, key=lambda t: (self.pool[t][1], t)))

    def exited(self, trial: int, invalid: bool) -> None:
        """Handle the end of a trial."""
        self._open.discard(trial)
        self._silent.pop(trial, None)
        if trial not in self.pool or invalid:
            self._forget(trial)

    @property
    def silent(self) -> list[int]:
        """The open trials that have not reported anything."""
        return [*self._silent]

    def best(self) -> list[int]:
        """Return the trials of the pool, the best first."""
        if self._all_lengths:
            return sorted(
                self.pool, key=lambda trial: (-self.pool[trial][0], self.pool[trial][1], trial)
            )
        return sorted(self.pool, key=lambda trial: (self.pool[trial][1], trial))

    def state(self) -> dict[str, Any]:
        return {
            "points": [[trial, item] for trial, item in self.items.items()],
            "open": sorted(self._open),
            "silent": [*self._silent],
            "pool": [[trial, *entry] for trial, entry in self.pool.items()],
            "floor": self._floor,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.items = dict(state["points"])
        self._open = set(state["open"])
        # Earlier versions did not save it.
        self._silent = dict.fromkeys(state.get("silent", ()))
        self.pool = {trial: (length, loss) for trial, length, loss in state["pool"]}
        self._floor = state["floor"]

    def _forget(self, trial: int) -> None:
        self.pool.pop(trial, None)
        if trial not in self._open:
            self.items.pop(trial, None)


class Evolution(Sampler):
    """Proposes altered copies of the best trials, and every fifth time a random point.

    The first BEGINNING trials, including those of earlier experiments, are those of a random
    search. Later parents are the best, at most PARENTS, of the trials that trained about as long as
    the longest ones, because results of short training rank configurations badly. A copy differs in
    most hyperparameters by a normal step. The size of the step is drawn for each copy from 4 to 30
    % of a range. A category is drawn at random with the probability of a change. Proposals of
    concurrent trials therefore differ without a model of the trials that have not reported.

    It remembers the points of open trials and of the best that ended, at most 64.

    Source: Schwefel 1981, the evolution strategy with several parents, asynchronous as in Real et
    al. 2019, "Regularized Evolution for Image Classifier Architecture Search", AAAI, without aging,
    and with the longest fidelity that has results as in Falkner et al. 2018, "BOHB", ICML.
    """

    BEGINNING = 40
    ENOUGH = 4
    """The number of trials of about equal length that are needed before they are parents."""
    PARENTS = 5
    RANDOM = 0.2
    CHANGE = 0.8
    SMALLEST, LARGEST = 0.04, 0.3
    REMEMBERED = 64

    learns = True
    TRIES = 100
    """After so many copies that the constraints refuse, a point is drawn at random."""

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], limits: Limits | None = None
    ) -> None:
        self._cube = UnitCube(hyperparameters, limits)
        self._seen: Observations[Point] = Observations(self.ENOUGH, self.REMEMBERED)
        self._learnt = 0

    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        parents = self._parents() if trial + self._learnt >= self.BEGINNING else []
        point, hparams = [], None
        if parents and self._cube.axes and rng.random() >= self.RANDOM:
            for _ in range(self.TRIES):
                point = self._altered(self._seen.items[parents[rng.below(len(parents))]], rng)
                if (hparams := self._cube.hparams(point)) is not None:
                    break
        if hparams is None:
            point, hparams = self._cube.draw(rng)
        self._seen.opened(trial, point)
        return hparams

    def adopt(self, trial: int, hparams: Mapping[str, Any]) -> None:
        self._learnt += trial < 0
        self._seen.opened(trial, self._cube.place(hparams))

    def validated(self, trial: int, length: float, loss: float) -> None:
        self._seen.validated(trial, length, loss)

    def exited(self, trial: int, reason: Exit) -> None:
        self._seen.exited(trial, reason is Exit.INVALID_HP)

    def state(self) -> dict[str, Any]:
        return self._seen.state() | {"learnt": self._learnt}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._seen.restore(state)
        self._learnt = state.get("learnt", 0)

    def _altered(self, parent: Point, rng: RandomState) -> Point:
        size = self.SMALLEST * (self.LARGEST / self.SMALLEST) ** rng.random()
        present = self._cube.present(parent)
        certain = present[rng.below(len(present))] if present else 0
        axes = zip(self._cube.axes, parent, strict=True)
        return [
            _altered(axis, at, size, rng) if i == certain or rng.random() < self.CHANGE else at
            for i, (axis, at) in enumerate(axes)
        ]

    def _parents(self) -> list[int]:
        """Return the best third of the pool, at least two, or none if there are not enough."""
        best = self._seen.best()
        return best[: min(self.PARENTS, max(2, len(best) // 3))] if len(best) >= self.ENOUGH else []


def _altered(axis: Range, at: float, size: float, rng: RandomState) -> float:
    if isinstance(axis, Categorical) and not axis.ordered:
        return rng.random()
    # Box and Muller's normal number. 1 - random() is never 0.
    normal = math.sqrt(-2 * math.log(1 - rng.random())) * math.cos(2 * math.pi * rng.random())
    at = (at + size * normal) % 2
    # Steps over a bound are reflected.
    return min(2 - at if at > 1 else at, 1.0)
