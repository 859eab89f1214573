"""Asynchronous successive halving, in two kinds: one promotes the better trials, the other stops the worse."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from det_core.errors import MetricError

from ._rungs import Standings
from ._search import Births, Method
from .base import WORST, Close, Exit, Objective, Operation, Train, read_number


class Bracket(Struct, frozen=True, kw_only=True):
    """The settings of one bracket; `lengths`, of its rungs, are absolute."""

    objective: Objective
    lengths: Sequence[int]
    divisor: float
    max_trials: int
    initial_trials: int


class _ASHA(Method):
    def __init__(self, bracket: Bracket, lengths: Sequence[int]) -> None:
        self.metric = bracket.objective.metric
        self._objective = bracket.objective
        self._lengths = lengths
        self._top = len(lengths) - 1
        self._divisor = bracket.divisor
        self._initial = bracket.initial_trials
        self._standings = Standings(len(lengths), bracket.max_trials)

    def begin(self, births: Births) -> list[Operation]:
        return [op for _ in range(self._initial) for op in self._create(births)]

    def progress(self, going: Mapping[int, float]) -> float:
        return self._standings.progress(self._lengths, self._divisor)

    def _create(self, births: Births) -> list[Operation]:
        self._standings.created += 1
        self._enter(births.count)
        return births.start(1, self._lengths[0])

    @abstractmethod
    def _enter(self, trial: int) -> None:
        """Take note of a new trial, which is under way to the lowest rung."""


class PromotionASHA(_ASHA):
    """Asynchronous successive halving, promotion kind: a trial trains to its rung's length and waits there.

    As soon as it is among the best 1/`divisor` of its rung it is promoted: it trains to the length of the next. While
    there is none to promote, new trials are created, up to `max_trials`. When all have passed the lowest rung, those
    that wait in a rung to which no trial is under way are closed. A trial that fails stands as the worst of its rung;
    promoted all the same, it takes part as the worst of the next; one that raises InvalidHP is replaced and forgotten.

    Equal lengths of rungs (short searches have them) are taken as one.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys, algorithm 2.
    """

    def __init__(self, bracket: Bracket) -> None:
        super().__init__(bracket, sorted(set(bracket.lengths)))
        self._under_way = [0 for _ in self._lengths]
        self._training: dict[int, int] = {}  # trials under way, and the rung to which
        self._waiting: list[dict[int, float]] = [{} for _ in self._lengths]  # by rung, with the loss in it
        self._passed: dict[int, list[float]] = {}  # of promoted trials, the losses in the rungs below
        self._gone: list[set[int]] = [set() for _ in self._lengths]  # ended, yet may be promoted

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        loss = self._objective.loss(metrics)
        rung = self._training.get(trial)
        if rung is None or length < self._lengths[rung]:
            return []
        del self._training[trial]
        rank = self._rank(trial, rung, loss)
        if rung == self._top:
            return [Close(trial), *self._next(births, None)]
        self._waiting[rung][trial] = loss
        return self._next(births, self._promotion(rung, rank))

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._standings.finished += 1
        passed = self._passed.pop(trial, [])
        rung = self._training.pop(trial, None)
        if rung is None:  # it waited, or was closed: its rank stays, nothing is due
            for waiting, gone in zip(self._waiting, self._gone, strict=True):
                if waiting.pop(trial, None) is not None:
                    gone.add(trial)
            return []
        if reason is Exit.INVALID_HP:
            self._under_way[rung] -= 1
            self._standings.forget(trial, passed)
            return self._create(births)
        rank = self._rank(trial, rung, WORST)
        self._gone[rung].add(trial)
        return self._next(births, self._promotion(rung, rank))

    def state(self) -> dict[str, Any]:
        return {
            **self._standings.state(),
            "training": [[trial, rung] for trial, rung in self._training.items()],
            "waiting": [[[trial, loss] for trial, loss in rung.items()] for rung in self._waiting],
            "passed": [[trial, list(losses)] for trial, losses in self._passed.items()],
            "gone": [sorted(rung) for rung in self._gone],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._standings.restore(state)
        self._training = dict(state["training"])
        self._waiting = [dict(rung) for rung in state["waiting"]]
        self._passed = {trial: list(losses) for trial, losses in state["passed"]}
        self._gone = [set(rung) for rung in state["gone"]]
        self._under_way = [0 for _ in self._lengths]
        for rung in self._training.values():
            self._under_way[rung] += 1

    def _rank(self, trial: int, rung: int, loss: float) -> int:
        self._under_way[rung] -= 1
        return self._standings.rungs[rung].insert(loss, trial, behind_ties=True)

    def _promotion(self, rung: int, newest: int) -> Train | None:
        """Return the promotion that a new entry in `rung`, of rank `newest`, brings about.

        A promoted trial that is gone makes the worst entry of the next rung, which may bring about another.
        """
        while rung < self._top and (trial := self._promotable(rung, newest)) is not None:
            rung += 1
            self._under_way[rung] += 1
            if trial not in self._gone[rung - 1]:
                self._passed.setdefault(trial, []).append(self._waiting[rung - 1].pop(trial))
                self._training[trial] = rung
                return Train(trial, self._lengths[rung])
            self._gone[rung - 1].remove(trial)
            self._gone[rung].add(trial)
            newest = self._rank(trial, rung, WORST)
        return None

    def _promotable(self, rung: int, newest: int) -> int | None:
        """Return the trial to promote: the newest, or one that the growth of the rung has brought into its best."""
        ranking = self._standings.rungs[rung]
        before = int((len(ranking) - 1) / self._divisor)
        now = int(len(ranking) / self._divisor)
        if newest < now:
            return ranking.at(newest)
        trial = ranking.at(before) if now > before else None
        return trial if trial in self._waiting[rung] or trial in self._gone[rung] else None

    def _next(self, births: Births, promotion: Train | None) -> list[Operation]:
        operations: list[Operation] = []
        if promotion is not None:
            operations.append(promotion)
        elif self._standings.wants_more:
            operations += self._create(births)
        if self._standings.all_seen:
            operations += self._close_hopeless()
        return operations

    def _close_hopeless(self) -> list[Operation]:
        """Close the trials that wait in a rung to which no other is under way, nor to any below."""
        operations: list[Operation] = []
        for waiting, under_way in zip(self._waiting, self._under_way, strict=True):
            if under_way:
                break
            operations += map(Close, waiting)
            waiting.clear()
        return operations

    def _enter(self, trial: int) -> None:
        self._under_way[0] += 1
        self._training[trial] = 0


class StoppingASHA(_ASHA):
    """Asynchronous successive halving, stopping kind: a trial goes on while it is among the best of its rung.

    A report past the length of a rung enters it; the trial goes on if it is then among the best 1/`divisor` of those
    that entered (the first always is), else it is closed and a new one created. One report may pass several rungs.
    Time is the metric `time_metric`, or the length of the validation where there is none. A trial that fails stands as
    the worst in the rung that it had not yet passed; one that raises InvalidHP is replaced and forgotten.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys, in the variant that
    Determined calls stop-once: no trial is resumed once it was left behind.
    """

    def __init__(self, bracket: Bracket, time_metric: str | None) -> None:
        super().__init__(bracket, bracket.lengths)
        self.time_metric = time_metric
        self._open: dict[int, list[float]] = {}  # the losses with which a trial entered its rungs so far

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        loss = self._objective.loss(metrics)
        time = self._time(length, metrics)
        losses = self._open[trial]
        entered = len(losses)
        while time >= self._lengths[len(losses)]:
            rung = len(losses)
            rank = self._standings.rungs[rung].insert(loss, trial, behind_ties=False)
            losses.append(loss)
            going_on = max(int(len(self._standings.rungs[rung]) / self._divisor), 1)
            if rung == self._top or rank >= going_on:
                return [Close(trial), *self._create_if_any_left(births)]
        if len(losses) == entered:
            return []
        return [Train(trial, self._lengths[len(losses)])]

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._standings.finished += 1
        losses = self._open.pop(trial)
        if closed:
            return []
        if reason is Exit.INVALID_HP:
            self._standings.forget(trial, losses)
            return self._create(births)
        if reason is not Exit.COMPLETED:  # one that ended by itself keeps the standing that it earned
            self._standings.rungs[len(losses)].insert(WORST, trial, behind_ties=False)
        return self._create_if_any_left(births)

    def state(self) -> dict[str, Any]:
        return {**self._standings.state(), "open": [[trial, list(losses)] for trial, losses in self._open.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._standings.restore(state)
        self._open = {trial: list(losses) for trial, losses in state["open"]}

    def _time(self, length: int, metrics: Mapping[str, float]) -> float:
        if self.time_metric is None:
            return length
        time = read_number("searcher.time_metric", self.time_metric, metrics)
        if math.isnan(time):
            raise MetricError(f"searcher.time_metric is {self.time_metric!r}, which the trial reports as NaN")
        return time

    def _enter(self, trial: int) -> None:
        self._open[trial] = []

    def _create_if_any_left(self, births: Births) -> list[Operation]:
        return self._create(births) if self._standings.wants_more else []
