"""ASHA that stops the worse trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from det_core.errors import MetricError

from ._method import Births, Method
from ._objective import WORST, Objective, read_number
from ._ranking import Ranking
from .base import Close, Exit, Operation, Train


class StoppingASHA(Method):
    """Asynchronous successive halving, stopping kind: a trial goes on while it is among the best of its rung.

    A report past the length of a rung enters it; the trial goes on if it is then among the best 1/`divisor` of those
    that entered (the first always is), else it is closed and a new one created. One report may pass several rungs.
    `lengths` are those of the rungs. Time is the metric `time_metric`, or the length of the validation where there is
    none. A trial that fails stands as the worst in the rung that it had not yet passed; one that raises InvalidHP is
    replaced and forgotten.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys, in the variant that
    Determined calls stop-once: no trial is resumed once it was left behind.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        lengths: Sequence[int],
        divisor: float,
        max_trials: int,
        initial_trials: int,
        time_metric: str | None = None,
    ) -> None:
        self.metric = objective.metric
        self.time_metric = time_metric
        self._objective = objective
        self._lengths = lengths
        self._divisor = divisor
        self._max_trials = max_trials
        self._initial = initial_trials
        self._rungs = [Ranking() for _ in lengths]
        self._open: dict[int, list[float]] = {}  # the losses with which a trial entered its rungs so far
        self._created = 0
        self._invalid = 0
        self._finished = 0

    def begin(self, births: Births) -> list[Operation]:
        return [op for _ in range(self._initial) for op in self._create(births)]

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        loss = self._objective.loss(metrics)
        time = self._time(length, metrics)
        losses = self._open[trial]
        entered = len(losses)
        while time >= self._lengths[len(losses)]:
            rung = len(losses)
            rank = self._rungs[rung].insert(loss, trial, behind_ties=False)
            losses.append(loss)
            going_on = max(int(len(self._rungs[rung]) / self._divisor), 1)
            if rung == len(self._lengths) - 1 or rank >= going_on:
                del self._open[trial]
                return [Close(trial), *self._create_if_any_left(births)]
        if len(losses) == entered:
            return []
        return [Train(trial, self._lengths[len(losses)])]

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._finished += 1
        if closed:
            return []
        losses = self._open.pop(trial)
        if reason is Exit.INVALID_HP:
            return self._replace(births, trial, losses)
        if reason is not Exit.COMPLETED:  # one that ended by itself keeps the standing that it earned
            self._rungs[len(losses)].insert(WORST, trial, behind_ties=False)
        return self._create_if_any_left(births)

    def progress(self, going: Mapping[int, float]) -> float:
        seen = len(self._rungs[0])
        done = seen / (1.2 * self._max_trials)
        if seen < self._max_trials:
            return done
        return max(done, (self._finished - self._invalid) / self._max_trials)

    def state(self) -> dict[str, Any]:
        return {
            "rungs": [rung.state() for rung in self._rungs],
            "open": [[trial, list(losses)] for trial, losses in self._open.items()],
            "created": self._created,
            "invalid": self._invalid,
            "finished": self._finished,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for rung, saved in zip(self._rungs, state["rungs"], strict=True):
            rung.restore(saved)
        self._open = {trial: list(losses) for trial, losses in state["open"]}
        self._created = state["created"]
        self._invalid = state["invalid"]
        self._finished = state["finished"]

    def _time(self, length: int, metrics: Mapping[str, float]) -> float:
        if self.time_metric is None:
            return length
        time = read_number("searcher.time_metric", self.time_metric, metrics)
        if math.isnan(time):
            raise MetricError(f"searcher.time_metric is {self.time_metric!r}, which the trial reports as NaN")
        return time

    def _create(self, births: Births) -> list[Operation]:
        self._created += 1
        create = births.create()
        self._open[create.trial] = []
        return [create, Train(create.trial, self._lengths[0])]

    def _create_if_any_left(self, births: Births) -> list[Operation]:
        return self._create(births) if self._created - self._invalid < self._max_trials else []

    def _replace(self, births: Births, trial: int, losses: list[float]) -> list[Operation]:
        self._invalid += 1
        for rung, loss in zip(self._rungs, losses, strict=False):
            rung.remove(loss, trial)
        return self._create(births)
