"""Asynchronous successive halving, in two kinds: promoting good trials, and stopping bad ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ._rungs import Standings
from ._search import Method, TrialFactory
from .base import WORST, Close, Exit, Objective, Operation, Train


class Bracket(Struct, frozen=True, kw_only=True):
    """The settings of one bracket. `lengths`, one for each rung, are absolute."""

    objective: Objective
    lengths: Sequence[int]
    divisor: float
    max_trials: int
    initial_trials: int
    at_once: int = 0
    """How many trials may be open at a time after trials were added. 0: `initial_trials`."""


class _ASHA(Method):
    def __init__(self, bracket: Bracket, lengths: Sequence[int]) -> None:
        self.metric = bracket.objective.metric
        self._objective = bracket.objective
        self._lengths = lengths
        self._top = len(lengths) - 1
        self._divisor = bracket.divisor
        self._initial = bracket.initial_trials
        self._at_once = bracket.at_once or bracket.initial_trials
        self._standings = Standings(len(lengths), bracket.max_trials)

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return [op for _ in range(self._initial) for op in self._create(factory)]

    @property
    def trains(self) -> bool:
        return bool(self._under_training)

    @property
    def wants_more(self) -> bool:
        return self._standings.wants_more

    def extend(self, factory: TrialFactory, count: int) -> list[Operation]:
        self._standings.grow(count)
        room = max(0, self._at_once - len(self._under_training))
        return [op for _ in range(min(count, room)) for op in self._create(factory)]

    @property
    @abstractmethod
    def _under_training(self) -> Collection[int]:
        """The trials that train. The search continues when one reports or ends."""

    def progress(self, going: Mapping[int, float]) -> float:
        return self._standings.progress(self._lengths, self._divisor)

    def _create(self, factory: TrialFactory) -> list[Operation]:
        self._standings.created += 1
        self._enter(factory.count)
        return factory.start(1, self._lengths[0])

    @abstractmethod
    def _enter(self, trial: int) -> None:
        """Note that a new trial trains to the lowest rung."""


class PromotionASHA(_ASHA):
    """Asynchronous successive halving by promotion: a trial trains to its rung's length and waits.

    - A trial among the best 1/`divisor` of its rung is promoted: it trains to the next length.
    - While there is none to promote, new trials are created, up to `max_trials`.
    - When all have passed the lowest rung, trials that wait in a rung are closed if no other trains
      to it or to a lower one.
    - A trial that fails ranks as the worst of its rung. If it is promoted nevertheless, it ranks as
      the worst of the next.
    - A trial that raises InvalidHP is replaced and removed from the ranks.

    Rungs of equal length, as short searches have them, are merged.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys,
    algorithm 2.
    """

    def __init__(self, bracket: Bracket) -> None:
        super().__init__(bracket, sorted(set(bracket.lengths)))
        self._under_way = [0 for _ in self._lengths]
        # The rung to which each trial trains.
        self._training: dict[int, int] = {}
        # The trials that wait in each rung, with their loss.
        self._waiting: list[dict[int, float]] = [{} for _ in self._lengths]
        # The losses of each promoted trial in the rungs below.
        self._passed: dict[int, list[float]] = {}
        # The trials in each rung that have ended. They may be promoted nevertheless.
        self._gone: list[set[int]] = [set() for _ in self._lengths]

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        loss = self._objective.loss(metrics)
        rung = self._training.get(trial)
        if rung is None or length < self._lengths[rung]:
            return []
        del self._training[trial]
        rank = self._rank(trial, rung, loss)
        if rung == self._top:
            return [Close(trial), *self._next(factory, None)]
        self._waiting[rung][trial] = loss
        return self._next(factory, self._promotion(rung, rank))

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        self._standings.finished += 1
        passed = self._passed.pop(trial, [])
        rung = self._training.pop(trial, None)
        if rung is None:
            # It waited, or was closed. Its rank stays, and nothing follows.
            for waiting, gone in zip(self._waiting, self._gone, strict=True):
                if waiting.pop(trial, None) is not None:
                    gone.add(trial)
            return []
        if reason is Exit.INVALID_HP:
            self._under_way[rung] -= 1
            self._standings.forget(trial, passed)
            if not factory.replaces:
                self._standings.shrink()
                return self._next(factory, None)
            return self._create(factory)
        rank = self._rank(trial, rung, WORST)
        self._gone[rung].add(trial)
        return self._next(factory, self._promotion(rung, rank))

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

    def close_all(self) -> list[Operation]:
        operations: list[Operation] = [Close(trial) for trial in self._training]
        for waiting in self._waiting:
            operations += map(Close, waiting)
            waiting.clear()
        self._training.clear()
        self._under_way = [0 for _ in self._lengths]
        return operations

    @property
    def _under_training(self) -> Collection[int]:
        return self._training

    def _rank(self, trial: int, rung: int, loss: float) -> int:
        self._under_way[rung] -= 1
        return self._standings.rungs[rung].insert(loss, trial, behind_ties=True)

    def _promotion(self, rung: int, newest: int) -> Train | None:
        """Return the promotion that follows from a new entry in `rung` with the rank `newest`.

        A promoted trial that has ended becomes the worst entry of the next rung, from which another
        promotion may follow.
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
        """Return the trial to promote, if any.

        It is the newest, or one that has become one of the best because the rung has grown.
        """
        ranking = self._standings.rungs[rung]
        before = int((len(ranking) - 1) / self._divisor)
        now = int(len(ranking) / self._divisor)
        if newest < now:
            return ranking.at(newest)
        trial = ranking.at(before) if now > before else None
        return trial if trial in self._waiting[rung] or trial in self._gone[rung] else None

    def _next(self, factory: TrialFactory, promotion: Train | None) -> list[Operation]:
        operations: list[Operation] = []
        if promotion is not None:
            operations.append(promotion)
        elif self._standings.wants_more:
            operations += self._create(factory)
        if self._standings.all_seen:
            operations += self._close_hopeless()
        return operations

    def _close_hopeless(self) -> list[Operation]:
        """Close the trials that wait in a rung if no other trains to it or to a lower one."""
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
    """Asynchronous successive halving by stopping: only the best trials of a rung continue.

    - A report past the length of a rung enters it. One report may pass several rungs.
    - The trial continues if it is then among the best 1/`divisor` of those that entered. The first
      one always is. Otherwise it is closed and a new trial is created.
    - Time is the metric `time_metric`, or the length of the validation if that is None.
    - A trial that fails ranks as the worst in the rung that it had not yet passed.
    - A trial that raises InvalidHP is replaced and removed from the ranks.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys, in the
    variant that Determined calls stop-once: a trial that was stopped never continues.
    """

    def __init__(self, bracket: Bracket, time_metric: str | None) -> None:
        super().__init__(bracket, bracket.lengths)
        self.time_metric = time_metric
        # The losses with which each open trial has entered its rungs.
        self._open: dict[int, list[float]] = {}

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        loss = self._objective.loss(metrics)
        time = self.read_time(length, metrics)
        losses = self._open[trial]
        entered = len(losses)
        while time >= self._lengths[len(losses)]:
            rung = len(losses)
            rank = self._standings.rungs[rung].insert(loss, trial, behind_ties=False)
            losses.append(loss)
            going_on = max(int(len(self._standings.rungs[rung]) / self._divisor), 1)
            if rung == self._top or rank >= going_on:
                del self._open[trial]
                return [Close(trial), *self._create_if_any_left(factory)]
        if len(losses) == entered:
            return []
        return [Train(trial, self._lengths[len(losses)])]

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        self._standings.finished += 1
        losses = self._open.pop(trial, [])
        if closed:
            return []
        if reason is Exit.INVALID_HP:
            self._standings.forget(trial, losses)
            if not factory.replaces:
                self._standings.shrink()
                return self._create_if_any_left(factory)
            return self._create(factory)
        # A trial that ended by itself keeps its rank.
        if reason is not Exit.COMPLETED:
            self._standings.rungs[len(losses)].insert(WORST, trial, behind_ties=False)
        return self._create_if_any_left(factory)

    def state(self) -> dict[str, Any]:
        return {
            **self._standings.state(),
            "open": [[trial, list(losses)] for trial, losses in self._open.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._standings.restore(state)
        self._open = {trial: list(losses) for trial, losses in state["open"]}

    def close_all(self) -> list[Operation]:
        operations: list[Operation] = [Close(trial) for trial in self._open]
        self._open.clear()
        return operations

    @property
    def _under_training(self) -> Collection[int]:
        return self._open

    def _enter(self, trial: int) -> None:
        self._open[trial] = []

    def _create_if_any_left(self, factory: TrialFactory) -> list[Operation]:
        return self._create(factory) if self._standings.wants_more else []
