"""Hyperband: synchronous successive halving, and its brackets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ._search import Method, TrialFactory
from .base import Close, Exit, Objective, Operation, Train


class Rung(Struct, frozen=True):
    """The number of trials of a rung, and their length."""

    trials: int
    length: int


class SyncHalving(Method):
    """Trains all trials of a rung, then the best of them to the length of the next rung.

    The others are closed when the last trial of the rung has reported. At most `at_once` trials of
    the first rung are open at a time (0: all), so that a sampler can learn. A trial that fails or
    ends early drops out. One that raises InvalidHP in the first rung is replaced.

    Source: Jamieson and Talwalkar 2016. Li et al. 2018, "Hyperband", JMLR 18(185), algorithm 1, the
    inner loop.
    """

    version = 2

    def __init__(self, objective: Objective, rungs: Sequence[Rung], at_once: int = 0) -> None:
        self.metric = objective.metric
        self._objective = objective
        self._rungs = rungs
        self._at_once = at_once or rungs[0].trials
        self._created = 0
        self._rung = 0
        self._training: set[int] = set()
        self._losses: dict[int, float] = {}

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return self._create(factory, min(self._at_once, self._rungs[0].trials))

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        loss = self._objective.loss(metrics)
        if trial not in self._training or length < self._rungs[self._rung].length:
            return []
        self._training.remove(trial)
        if self._rung == len(self._rungs) - 1:
            return [Close(trial), *self._go_on(factory)]
        self._losses[trial] = loss
        return self._go_on(factory)

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        self._losses.pop(trial, None)
        if trial not in self._training:
            return []
        self._training.remove(trial)
        if reason is Exit.INVALID_HP and self._rung == 0:
            self._created -= 1
            return self._create(factory, 1)
        return self._go_on(factory)

    def progress(self, going: Mapping[int, float]) -> float:
        done, before = 0.0, 0
        for i, rung in enumerate(self._rungs[: self._rung + 1]):
            under_way = len(self._training) if i == self._rung else 0
            under_way += rung.trials - self._created if i == 0 else 0
            done += (rung.trials - under_way) * (rung.length - before)
            before = rung.length
        return done / cost(self._rungs)

    def state(self) -> dict[str, Any]:
        return {
            "rung": self._rung,
            "training": sorted(self._training),
            "losses": [[trial, loss] for trial, loss in self._losses.items()],
            "created": self._created,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rung = state["rung"]
        self._training = set(state["training"])
        self._losses = dict(state["losses"])
        self._created = state["created"]

    @property
    def next_may_begin(self) -> bool:
        """Whether all trials of the first rung have been created and have reported or ended."""
        return self._created == self._rungs[0].trials and (self._rung > 0 or not self._training)

    def _create(self, factory: TrialFactory, count: int) -> list[Operation]:
        self._created += count
        self._training.update(range(factory.count, factory.count + count))
        return factory.start(count, self._rungs[0].length)

    def _go_on(self, factory: TrialFactory) -> list[Operation]:
        left = self._rungs[0].trials - self._created
        return self._create(factory, 1) if left else self._halve()

    def _halve(self) -> list[Operation]:
        """Start the next rung if the last trial of this one has reported."""
        if self._training or self._rung == len(self._rungs) - 1:
            return []
        self._rung += 1
        going_on = self._rungs[self._rung].trials
        best_first = sorted(self._losses, key=lambda trial: (self._losses[trial], trial))
        self._losses.clear()
        self._training.update(best_first[:going_on])
        operations: list[Operation] = [Close(trial) for trial in best_first[going_on:]]
        operations += [
            Train(trial, self._rungs[self._rung].length) for trial in best_first[:going_on]
        ]
        return operations


def cost(rungs: Sequence[Rung]) -> int:
    """Return the total length that a bracket trains, where each trial continues from its rung."""
    lengths = [0, *(rung.length for rung in rungs)]
    return sum(
        rung.trials * (rung.length - before) for rung, before in zip(rungs, lengths, strict=False)
    )


def hyperband_brackets(max_length: int, divisor: float) -> list[list[Rung]]:
    """Return the rungs of every bracket, beginning with the one that stops most trials early.

    Source: Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter
    Optimization", JMLR 18(185), algorithm 1: R is `max_length`, eta is `divisor`. Rungs of equal
    length (with a `divisor` near 1) are merged.
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
