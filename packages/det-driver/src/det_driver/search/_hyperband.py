"""Hyperband: synchronous successive halving, and the brackets that run it side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ._search import Births, Method
from .base import Close, Exit, Objective, Operation, Train


class Rung(Struct, frozen=True):
    """How many trials train how long."""

    trials: int
    length: int


class SyncHalving(Method):
    """Trains all trials of a rung, then the best of them to the length of the next; the others are closed.

    Nothing is decided before the last trial of a rung has reported. One that fails or ends early drops out; one that
    raises InvalidHP in the first rung is replaced.

    Source: Jamieson and Talwalkar 2016; Li et al. 2018, "Hyperband", JMLR 18(185), algorithm 1, the inner loop.
    """

    def __init__(self, objective: Objective, rungs: Sequence[Rung]) -> None:
        self.metric = objective.metric
        self._objective = objective
        self._rungs = rungs
        self._rung = 0
        self._training: set[int] = set()
        self._losses: dict[int, float] = {}

    def begin(self, births: Births) -> list[Operation]:
        first = self._rungs[0]
        self._training.update(range(births.count, births.count + first.trials))
        return births.start(first.trials, first.length)

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        loss = self._objective.loss(metrics)
        if trial not in self._training or length < self._rungs[self._rung].length:
            return []
        self._training.remove(trial)
        if self._rung == len(self._rungs) - 1:
            return [Close(trial)]
        self._losses[trial] = loss
        return self._halve()

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._losses.pop(trial, None)
        if trial not in self._training:
            return []
        self._training.remove(trial)
        if reason is Exit.INVALID_HP and self._rung == 0:
            self._training.add(births.count)
            return births.start(1, self._rungs[0].length)
        return self._halve()

    def progress(self, going: Mapping[int, float]) -> float:
        done, before = 0.0, 0
        for i, rung in enumerate(self._rungs[: self._rung + 1]):
            under_way = len(self._training) if i == self._rung else 0
            done += (rung.trials - under_way) * (rung.length - before)
            before = rung.length
        return done / cost(self._rungs)

    def state(self) -> dict[str, Any]:
        return {
            "rung": self._rung,
            "training": sorted(self._training),
            "losses": [[trial, loss] for trial, loss in self._losses.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rung = state["rung"]
        self._training = set(state["training"])
        self._losses = dict(state["losses"])

    def _halve(self) -> list[Operation]:
        """Go on to the next rung if the last trial of this one has reported."""
        if self._training or self._rung == len(self._rungs) - 1:
            return []
        self._rung += 1
        going_on = self._rungs[self._rung].trials
        best_first = sorted(self._losses, key=lambda trial: (self._losses[trial], trial))
        self._losses.clear()
        self._training.update(best_first[:going_on])
        operations: list[Operation] = [Close(trial) for trial in best_first[going_on:]]
        operations += [Train(trial, self._rungs[self._rung].length) for trial in best_first[:going_on]]
        return operations


def cost(rungs: Sequence[Rung]) -> int:
    """Return what a bracket trains in all, where each trial goes on from where it was."""
    lengths = [0, *(rung.length for rung in rungs)]
    return sum(rung.trials * (rung.length - before) for rung, before in zip(rungs, lengths, strict=False))


def hyperband_brackets(max_length: int, divisor: float) -> list[list[Rung]]:
    """Return the rungs of every bracket, the one that stops most trials early first.

    Source: Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18(185),
    algorithm 1: R is `max_length`, eta is `divisor`. Rungs of equal length (with a `divisor` near 1) are taken as one.
    """
    most = 0
    while divisor ** (most + 1) <= max_length:
        most += 1
    return [_bracket(max_length, divisor, most, halvings) for halvings in range(most, -1, -1)]


def _bracket(max_length: int, divisor: float, most: int, halvings: int) -> list[Rung]:
    trials = math.ceil((most + 1) * divisor**halvings / (halvings + 1))
    rungs = (
        Rung(trials=int(trials / divisor**i), length=int(max_length / divisor ** (halvings - i)))
        for i in range(halvings + 1)
    )
    by_length: dict[int, Rung] = {}
    for rung in rungs:
        by_length.setdefault(rung.length, rung)
    return list(by_length.values())
