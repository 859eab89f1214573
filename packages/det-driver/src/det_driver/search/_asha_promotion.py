"""ASHA that promotes the better trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._method import Births, Method
from ._objective import WORST, Objective
from ._ranking import Ranking
from .base import Close, Exit, Operation, Train


class PromotionASHA(Method):
    """Asynchronous successive halving, promotion kind: a trial trains to its rung's length and waits there.

    As soon as it is among the best 1/`divisor` of its rung it is promoted: it trains to the length of the next. While
    there is none to promote, new trials are created, up to `max_trials`. When all have passed the lowest rung, those
    that wait in a rung to which no trial is under way are closed. A trial that fails stands as the worst of its rung;
    promoted all the same, it takes part as the worst of the next; one that raises InvalidHP is replaced and forgotten.

    `lengths`, of the rungs, are absolute, and equal ones (short searches have them) are taken as one.

    Source: Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", MLSys, algorithm 2.
    """

    def __init__(
        self, objective: Objective, *, lengths: Sequence[int], divisor: float, max_trials: int, initial_trials: int
    ) -> None:
        self.metric = objective.metric
        self._objective = objective
        self._lengths = sorted(set(lengths))
        self._top = len(self._lengths) - 1
        self._divisor = divisor
        self._max_trials = max_trials
        self._initial = initial_trials
        self._rungs = [Ranking() for _ in self._lengths]
        self._under_way = [0 for _ in self._lengths]
        self._training: dict[int, int] = {}  # trials under way, and the rung to which
        self._waiting: list[dict[int, float]] = [{} for _ in self._lengths]  # by rung, with the loss in it
        self._passed: dict[int, list[float]] = {}  # of promoted trials, the losses in the rungs below
        self._gone: list[set[int]] = [set() for _ in self._lengths]  # ended, yet may be promoted
        self._created = 0
        self._invalid = 0
        self._finished = 0

    def begin(self, births: Births) -> list[Operation]:
        return [op for _ in range(self._initial) for op in self._create(births)]

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        loss = self._objective.loss(metrics)
        rung = self._training.get(trial)
        if rung is None or length < self._lengths[rung]:
            return []
        del self._training[trial]
        rank = self._rank(trial, rung, loss)
        if rung == self._top:
            return [self._close(trial), *self._next(births, None)]
        self._waiting[rung][trial] = loss
        return self._next(births, self._promotion(rung, rank))

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._finished += 1
        if closed:
            return []
        if trial not in self._training:
            return self._leave(trial)
        rung = self._training.pop(trial)
        passed = self._passed.pop(trial, [])
        if reason is Exit.INVALID_HP:
            return self._replace(births, trial, rung, passed)
        rank = self._rank(trial, rung, WORST)
        self._gone[rung].add(trial)
        return self._next(births, self._promotion(rung, rank))

    def progress(self, going: Mapping[int, float]) -> float:
        seen = len(self._rungs[0])
        done = seen / (1.2 * self._max_trials)
        if seen < self._max_trials:
            return done
        return max(done, (self._finished - self._invalid) / self._max_trials)

    def state(self) -> dict[str, Any]:
        return {
            "rungs": [rung.state() for rung in self._rungs],
            "training": [[trial, rung] for trial, rung in self._training.items()],
            "waiting": [[[trial, loss] for trial, loss in rung.items()] for rung in self._waiting],
            "passed": [[trial, list(losses)] for trial, losses in self._passed.items()],
            "gone": [sorted(rung) for rung in self._gone],
            "created": self._created,
            "invalid": self._invalid,
            "finished": self._finished,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for ranking, saved in zip(self._rungs, state["rungs"], strict=True):
            ranking.restore(saved)
        self._training = dict(state["training"])
        self._waiting = [dict(rung) for rung in state["waiting"]]
        self._passed = {trial: list(losses) for trial, losses in state["passed"]}
        self._gone = [set(rung) for rung in state["gone"]]
        self._under_way = [0 for _ in self._lengths]
        for rung in self._training.values():
            self._under_way[rung] += 1
        self._created = state["created"]
        self._invalid = state["invalid"]
        self._finished = state["finished"]

    def _rank(self, trial: int, rung: int, loss: float) -> int:
        self._under_way[rung] -= 1
        return self._rungs[rung].insert(loss, trial, behind_ties=True)

    def _promotion(self, rung: int, newest: int) -> Train | None:
        """Return the promotion that a new entry in `rung`, of rank `newest`, brings about.

        A promoted trial that is gone makes the worst entry of the next rung, which may bring about another.
        """
        while rung < self._top:
            trial = self._promotable(rung, newest)
            if trial is None:
                return None
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
        ranking = self._rungs[rung]
        before = int((len(ranking) - 1) / self._divisor)
        now = int(len(ranking) / self._divisor)
        if newest < now:
            return ranking.at(newest)
        if now == before:
            return None
        trial = ranking.at(before)
        return trial if trial in self._waiting[rung] or trial in self._gone[rung] else None

    def _next(self, births: Births, promotion: Train | None) -> list[Operation]:
        operations: list[Operation] = []
        if promotion is not None:
            operations.append(promotion)
        elif self._created - self._invalid < self._max_trials:
            operations += self._create(births)
        if len(self._rungs[0]) == self._max_trials:
            operations += self._close_hopeless()
        return operations

    def _close_hopeless(self) -> list[Operation]:
        """Close the trials that wait in a rung to which no other is under way, nor to any below."""
        operations: list[Operation] = []
        for waiting, under_way in zip(self._waiting, self._under_way, strict=True):
            if under_way:
                break
            operations += map(self._close, waiting)
            waiting.clear()
        return operations

    def _create(self, births: Births) -> list[Operation]:
        self._created += 1
        self._under_way[0] += 1
        create = births.create()
        self._training[create.trial] = 0
        return [create, Train(create.trial, self._lengths[0])]

    def _close(self, trial: int) -> Close:
        self._passed.pop(trial, None)
        return Close(trial)

    def _replace(self, births: Births, trial: int, rung: int, passed: list[float]) -> list[Operation]:
        self._invalid += 1
        self._under_way[rung] -= 1
        for ranking, loss in zip(self._rungs, passed, strict=False):
            ranking.remove(loss, trial)
        return self._create(births)

    def _leave(self, trial: int) -> list[Operation]:
        """Take note that a waiting trial ended; its rank stays, nothing is due."""
        for waiting, gone in zip(self._waiting, self._gone, strict=True):
            if waiting.pop(trial, None) is not None:
                gone.add(trial)
        self._passed.pop(trial, None)
        return []
