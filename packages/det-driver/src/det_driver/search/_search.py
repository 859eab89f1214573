"""A search: one method or several brackets, the trials that it created, and their ends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from det_core.config import Hyperparameter
from det_core.errors import ConfigError, MetricError, PluginError

from ..space import Limits
from ._enqueued import Completion
from ._sampler import Sampler
from ._sampling import RandomState, sampler
from .base import (
    Close,
    Create,
    EarlierResult,
    Exit,
    Objective,
    Operation,
    Searcher,
    Shutdown,
    Train,
    read_number,
)

_REQUEST_ID_WORDS = 4
_OPEN, _CLOSED, _ENDED = b"oce"


class TrialFactory:
    """Creates the trials of one search: numbers them and draws their random values.

    The order of draws is Determined's. For each trial it draws the hyperparameters, 128 bits
    (Determined's request id, unused here) and the seed. If there is a `learner`, it proposes the
    hyperparameters.
    """

    def __init__(
        self,
        hyperparameters: Mapping[str, Hyperparameter],
        seed: int,
        learner: Sampler | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.rng = RandomState(seed)
        self.count = 0
        self.limits = Limits(hyperparameters) if limits is None else limits
        self._sample = sampler(hyperparameters)
        self._learner = learner
        self.completion = Completion(hyperparameters, self.limits, self._sample)
        self.waiting: list[dict[str, Any]] = []
        """Hyperparameters that the next trials get, before any are proposed."""

    def enqueue(self, given: Mapping[str, Any]) -> None:
        """Give the next trial these hyperparameters. The others are drawn at random."""
        self.waiting.append(self.completion.completed(given, self.rng))

    def create(self, hparams: dict[str, Any] | None = None, source: int | None = None) -> Create:
        """Return the next trial. Its hyperparameters are drawn if none are given."""
        if hparams is None and self.waiting:
            hparams = self.waiting.pop(0)
            if self._learner is not None:
                self._learner.adopt(self.count, hparams)
        elif hparams is None and self._learner is not None:
            hparams = self._learner.propose(self.count, self.rng)
        elif hparams is None:
            hparams = self.limits.draw(lambda: self._sample(self.rng))
        elif self._learner is not None:
            self._learner.adopt(self.count, hparams)
        self.rng.skip_words(_REQUEST_ID_WORDS)
        self.count += 1
        return Create(
            trial=self.count - 1, hparams=hparams, seed=self.rng.below(2**31), source=source
        )

    @property
    def replaces(self) -> bool:
        """Whether an invalid trial is replaced. A grid tries each point once, and replaces none."""
        return self._learner is None or self._learner.most is None

    def start(self, count: int, until: int | None) -> list[Operation]:
        """Return `count` new trials, each with an operation to train to `until`."""
        operations: list[Operation] = []
        for _ in range(count):
            create = self.create()
            operations += create, Train(create.trial, until)
        return operations

    def state(self) -> dict[str, Any]:
        """Return the state of the random numbers, the number of trials, and those enqueued."""
        waiting = {"waiting": self.waiting} if self.waiting else {}
        return {"rng": self.rng.state(), "count": self.count, **waiting}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.rng.restore(state["rng"])
        self.count = state["count"]
        self.waiting = [*state.get("waiting", ())]


class Method(ABC):
    """Decides which trials to create and how long to train each, for one search or one bracket.

    It gets events of its own trials only: validations while the trial is open, and each exit once.
    """

    metric: str | None = None
    time_metric: str | None = None
    version: int = 1
    """The version of its `state`, as a Searcher's."""

    @property
    def next_may_begin(self) -> bool:
        """Whether the next bracket may begin, where brackets run in turn."""
        return True

    @abstractmethod
    def begin(self, factory: TrialFactory) -> list[Operation]:
        """Return the first operations."""

    @abstractmethod
    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        """Handle the validation of an open trial."""

    @abstractmethod
    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        """Handle the end of a trial, which may have been `closed` before."""

    @abstractmethod
    def progress(self, going: Mapping[int, float]) -> float:
        """Return the progress, 0 to 1. `going` has that of each trial that has not ended."""

    @property
    def trains(self) -> bool:
        """Whether a trial trains or will train."""
        return False

    @property
    def wants_more(self) -> bool:
        """Whether there are trials left to create."""
        return False

    def read_time(self, length: int, metrics: Mapping[str, float]) -> float:
        """Return how long a trial has trained: its metric `time_metric`, or `length` without one.

        Raises MetricError if the metric is missing, or not a number.
        """
        if self.time_metric is None:
            return length
        time = read_number("searcher.time_metric", self.time_metric, metrics)
        if math.isnan(time):
            raise MetricError(
                f"searcher.time_metric is {self.time_metric!r}, which the trial reports as NaN"
            )
        return time

    def close_all(self) -> list[Operation]:
        """Close the open trials, and promote none of them."""
        return []

    def extend(self, factory: TrialFactory, count: int) -> list[Operation]:
        """Create `count` more trials than planned, as many at once as are allowed."""
        raise ConfigError(
            "the number of trials of this search is its method's own, and it takes no more; start"
            " another search"
        )

    def state(self) -> dict[str, Any] | None:
        """Return the complete state in JSON's types. A method without one always returns None."""
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        raise PluginError(
            f"search method {type(self).__name__} keeps no state; give it its past events again"
        )


class Search(Searcher):
    """Runs a method, and filters and completes its events.

    Validations of a closed or ended trial are ignored (Determined's ASHA took them for new
    results), and so are second exits. The search shuts down when every trial has ended.

    A `sampler`, which needs an `objective`, proposes the hyperparameters that the method leaves
    open. It gets the events of open trials before the method does. Random draws satisfy the
    `limits`, which are those of the space and of `searcher.constraints`. A method that proposes
    hyperparameters uses `factory.limits`.
    """

    def __init__(
        self,
        method: Method,
        hyperparameters: Mapping[str, Hyperparameter],
        seed: int,
        sampler: Sampler | None = None,
        objective: Objective | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.metric = method.metric if objective is None else objective.metric
        self.time_metric = method.time_metric
        self.version = method.version
        self._method = method
        self._sampler = sampler
        self._objective = objective
        self.limits = Limits(hyperparameters) if limits is None else limits
        self._factory = TrialFactory(hyperparameters, seed, sampler, self.limits)
        # One letter for each trial.
        self._lives = bytearray()
        self._exits: Counter[str] = Counter()

    def start(self) -> list[Operation]:
        return self._noted(self._method.begin(self._factory))

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self._life(trial) != _OPEN:
            return []
        self._teach(trial, length, metrics)
        return self._noted(self._method.validated(self._factory, trial, length, metrics))

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        life = self._life(trial)
        if life == _ENDED:
            return []
        self._lives[trial] = _ENDED
        self._exits[reason] += 1
        if self._sampler is not None:
            self._sampler.exited(trial, reason)
        operations = self._noted(self._method.exited(self._factory, trial, reason, life == _CLOSED))
        if self._all_ended:
            operations.append(shutdown(self._exits))
        return operations

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        going = {
            trial: _fraction(done)
            for trial, done in trial_progress.items()
            if self._life(trial) != _ENDED
        }
        if self._all_ended:
            return 1.0
        return _fraction(self._method.progress(going))

    def extend(self, count: int, enqueued: Sequence[Mapping[str, Any]] = ()) -> list[Operation]:
        if count and not self._factory.replaces:
            raise ConfigError(
                "a grid tries each of its points once, and has no more; enqueue other trials"
                " instead"
            )
        if enqueued and self._sampler is not None and not self._sampler.adopts:
            raise ConfigError(
                f"the sampler {type(self._sampler).__name__} takes no trials that it did not"
                " propose; enqueue none"
            )
        for given in enqueued:
            self._factory.enqueue(given)
        return self._noted(self._method.extend(self._factory, count + len(enqueued)))

    @property
    def may_fill(self) -> bool:
        return isinstance(self._method, Tournament) and self._method.may_fill

    def fill(self, count: int) -> list[Operation]:
        if not isinstance(self._method, Tournament):
            return []
        return self._noted(self._method.fill(self._factory, count))

    def learn(self, results: Sequence[EarlierResult]) -> list[str]:
        if self._sampler is None or self._objective is None or not self._sampler.learns:
            raise ConfigError(
                "searcher.learn_from is given, and this searcher learns nothing; take the sampler"
                " evolution or tpe, or leave it out"
            )
        left_out: Counter[str] = Counter()
        learnt = 0
        for result in results:
            hparams = self._factory.completion.transferred(
                result.hparams, self._factory.rng, left_out
            )
            if hparams is not None:
                learnt += 1
                self._sampler.adopt(-learnt, hparams)
                self._sampler.validated(
                    -learnt,
                    result.length,
                    self._objective.loss({self._objective.metric: result.metric}),
                )
                self._sampler.exited(-learnt, Exit.COMPLETED)
        notes = [
            f"left out: {what} ({count} of {len(results)})"
            for what, count in sorted(left_out.items())
        ]
        return [f"learns from {learnt} of {len(results)} earlier trials", *notes]

    def state(self) -> dict[str, Any] | None:
        method = self._method.state()
        if method is None:
            return method
        return {
            "births": self._factory.state(),
            "lives": self._lives.decode("ascii"),
            "exits": dict(self._exits),
            "method": method,
            **({} if self._sampler is None else {"sampler": self._sampler.state()}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._factory.restore(state["births"])
        self._lives = bytearray(state["lives"], "ascii")
        self._exits = Counter(state["exits"])
        self._method.restore(state["method"])
        if self._sampler is not None:
            self._sampler.restore(state["sampler"])

    def _teach(self, trial: int, length: int, metrics: Mapping[str, float]) -> None:
        if self._sampler is None or self._objective is None:
            return
        loss, time = self._objective.loss(metrics), float(length)
        if self.time_metric is not None:
            time = read_number("searcher.time_metric", self.time_metric, metrics)
        # The method reports a time that is NaN.
        if not math.isnan(time):
            self._sampler.validated(trial, time, loss)

    @property
    def _all_ended(self) -> bool:
        return 0 < self._exits.total() == self._factory.count

    def _life(self, trial: int) -> int:
        if not 0 <= trial < len(self._lives):
            raise ValueError(
                f"trial {trial} was never created; the trials are 0 to {len(self._lives) - 1}"
            )
        return self._lives[trial]

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self._lives.append(_OPEN)
            elif isinstance(operation, Close):
                self._lives[operation.trial] = _CLOSED
        return operations


def shutdown(exits: Counter[str]) -> Shutdown:
    """Return the end of a search whose trials have all ended. `exits` counts them by reason."""
    ended = exits.total()
    return Shutdown(failed=exits[Exit.ERRORED] == ended, cancelled=exits[Exit.CANCELED] == ended)


class Tournament(Method):
    """Runs the brackets of a search. Each gets the events of its own trials.

    The progress is the mean of the brackets'. They run concurrently, or with `in_turn` one begins
    when the previous one allows it.

    The `filler` is a further bracket, for the trials that are created for idle slots. They compete
    only with each other, so the other trials are decided as without them. They are closed when the
    last of the others ends.
    """

    def __init__(
        self, brackets: Sequence[Method], *, in_turn: bool = False, filler: Method | None = None
    ) -> None:
        self._filler = filler
        self._main = [*brackets]
        self._begun = 0
        self._in_turn = in_turn
        self.version = brackets[0].version
        self.metric = brackets[0].metric
        self.time_metric = brackets[0].time_metric
        self._brackets = [*brackets] if filler is None else [*brackets, filler]
        # The bracket of each trial.
        self._owners = array("i")

    def begin(self, factory: TrialFactory) -> list[Operation]:
        operations: list[Operation] = []
        while self._begun < len(self._brackets):
            bracket = self._begun
            self._begun += 1
            operations += self._owned(bracket, self._brackets[bracket].begin(factory))
            if self._in_turn:
                break
        return operations

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        owner = self._owners[trial]
        operations = self._owned(
            owner, self._brackets[owner].validated(factory, trial, length, metrics)
        )
        return operations + self._next(factory)

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        owner = self._owners[trial]
        operations = self._owned(
            owner, self._brackets[owner].exited(factory, trial, reason, closed)
        )
        return operations + self._next(factory)

    def extend(self, factory: TrialFactory, count: int) -> list[Operation]:
        """Divide the trials among the brackets in proportion to those that they have created."""
        operations: list[Operation] = []
        made, before = [self._owners.count(bracket) for bracket in range(len(self._main))], 0
        for bracket, method in enumerate(self._main):
            until = sum(made[: bracket + 1]) * count // sum(made)
            if until > before:
                operations += self._owned(bracket, method.extend(factory, until - before))
            before = until
        return operations

    @property
    def may_fill(self) -> bool:
        """Whether trials still train, and none is left to create."""
        if self._filler is None or self._filler.wants_more:
            return False
        return any(each.trains for each in self._main) and not any(
            each.wants_more for each in self._main
        )

    def fill(self, factory: TrialFactory, count: int) -> list[Operation]:
        """Create further trials for `count` idle slots."""
        if self._filler is None or not self.may_fill:
            return []
        return self._owned(len(self._main), self._filler.extend(factory, count))

    def progress(self, going: Mapping[int, float]) -> float:
        shares: list[dict[int, float]] = [{} for _ in self._brackets]
        for trial, done in going.items():
            shares[self._owners[trial]][trial] = done
        done_each = [
            bracket.progress(share) for bracket, share in zip(self._main, shares, strict=False)
        ]
        return sum(done_each) / len(done_each)

    def state(self) -> dict[str, Any]:
        return {
            "owners": self._owners.tolist(),
            "brackets": [bracket.state() for bracket in self._brackets],
            "begun": self._begun,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._owners = array("i", state["owners"])
        for bracket, saved in zip(self._brackets, state["brackets"], strict=True):
            bracket.restore(saved)
        self._begun = state.get("begun", len(self._brackets))

    def _next(self, factory: TrialFactory) -> list[Operation]:
        """Begin the next bracket if there is room, or close the filler's trials after the last."""
        if self._filler is not None and not any(
            each.trains or each.wants_more for each in self._main
        ):
            return self._filler.close_all()
        waits = self._begun < len(self._brackets) and self._brackets[self._begun - 1].next_may_begin
        return self.begin(factory) if waits else []

    def _owned(self, owner: int, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self._owners.append(owner)
        return operations


def _fraction(done: float) -> float:
    return min(1.0, max(0.0, done)) if math.isfinite(done) else 0.0
