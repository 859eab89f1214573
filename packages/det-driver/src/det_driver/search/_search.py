"""A search: a method, or several side by side, the trials it made, and what became of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from det_core.config import Hyperparameter
from det_core.errors import PluginError

from ._sampling import RandomState, sampler
from .base import Close, Create, Exit, Operation, Searcher, Shutdown, Train

_REQUEST_ID_WORDS = 4
_OPEN, _CLOSED, _ENDED = b"oce"


class Births:
    """Numbers the trials of one search and draws what is random about them, in Determined's order.

    For each trial: its hyperparameters, 128 bits (Determined's request id, of no use here), its seed.
    """

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> None:
        self.rng = RandomState(seed)
        self.count = 0
        self._sample = sampler(hyperparameters)

    def create(self, hparams: dict[str, Any] | None = None, source: int | None = None) -> Create:
        """Return the next trial; its hyperparameters are drawn where none are given."""
        if hparams is None:
            hparams = self._sample(self.rng)
        self.rng.skip_words(_REQUEST_ID_WORDS)
        self.count += 1
        return Create(trial=self.count - 1, hparams=hparams, seed=self.rng.below(2**31), source=source)

    def start(self, count: int, until: int | None) -> list[Operation]:
        """Return `count` new trials, each to be trained to `until`."""
        operations: list[Operation] = []
        for _ in range(count):
            create = self.create()
            operations += create, Train(create.trial, until)
        return operations

    def state(self) -> dict[str, Any]:
        """Return the position in the random numbers and the number of trials."""
        return {"rng": self.rng.state(), "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self.rng.restore(state["rng"])
        self.count = state["count"]


class Method(ABC):
    """Decides which trials to make and how long to train each, for one search or one bracket of it.

    It hears of its own trials only, of validations only while the trial is open, and of each exit once.
    """

    metric: str | None = None
    time_metric: str | None = None
    version: int = 1
    """Of its `state`, as a Searcher's."""

    @abstractmethod
    def begin(self, births: Births) -> list[Operation]:
        """Return the first operations."""

    @abstractmethod
    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        """Take the validation of an open trial."""

    @abstractmethod
    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        """Take the end of a trial, which had been `closed` before or not."""

    @abstractmethod
    def progress(self, going: Mapping[int, float]) -> float:
        """Return how much is done, 0 to 1, given the same of each trial that has not ended."""

    def state(self) -> dict[str, Any] | None:
        """Return what it remembers, as JSON can hold it; None, for good, where it keeps no state."""
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the method whose state this is."""
        raise PluginError(f"search method {type(self).__name__} keeps no state; give it its past events anew")


class Search(Searcher):
    """Runs a method and keeps from it what it need not know.

    A validation of a trial that is closed or ended is ignored (Determined's ASHA took it for a new result), and so
    is a second exit. The search shuts down when every trial has ended.
    """

    def __init__(self, method: Method, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> None:
        self.metric = method.metric
        self.time_metric = method.time_metric
        self.version = method.version
        self._method = method
        self._births = Births(hyperparameters, seed)
        self._lives = bytearray()  # one letter for each trial
        self._exits: Counter[str] = Counter()

    def start(self) -> list[Operation]:
        return self._noted(self._method.begin(self._births))

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self._life(trial) != _OPEN:
            return []
        return self._noted(self._method.validated(self._births, trial, length, metrics))

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        life = self._life(trial)
        if life == _ENDED:
            return []
        self._lives[trial] = _ENDED
        self._exits[reason] += 1
        operations = self._noted(self._method.exited(self._births, trial, reason, life == _CLOSED))
        if self._all_ended:
            operations.append(shutdown(self._exits))
        return operations

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        going = {trial: _fraction(done) for trial, done in trial_progress.items() if self._life(trial) != _ENDED}
        if self._all_ended:
            return 1.0
        return _fraction(self._method.progress(going))

    def state(self) -> dict[str, Any] | None:
        method = self._method.state()
        if method is None:
            return method
        return {
            "births": self._births.state(),
            "lives": self._lives.decode("ascii"),
            "exits": dict(self._exits),
            "method": method,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._births.restore(state["births"])
        self._lives = bytearray(state["lives"], "ascii")
        self._exits = Counter(state["exits"])
        self._method.restore(state["method"])

    @property
    def _all_ended(self) -> bool:
        return 0 < self._exits.total() == self._births.count

    def _life(self, trial: int) -> int:
        if not 0 <= trial < len(self._lives):
            raise ValueError(f"trial {trial} was never created; the trials are 0 to {len(self._lives) - 1}")
        return self._lives[trial]

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self._lives.append(_OPEN)
            elif isinstance(operation, Close):
                self._lives[operation.trial] = _CLOSED
        return operations


def shutdown(exits: Counter[str]) -> Shutdown:
    """Return the end of a search whose trials have all ended, counted by their reason."""
    ended = exits.total()
    return Shutdown(failed=exits[Exit.ERRORED] == ended, cancelled=exits[Exit.CANCELED] == ended)


class Tournament(Method):
    """Runs the brackets of a search side by side; each hears of its own trials, and their progress is averaged."""

    def __init__(self, brackets: Sequence[Method]) -> None:
        self.metric = brackets[0].metric
        self.time_metric = brackets[0].time_metric
        self._brackets = brackets
        self._owners = array("i")  # of each trial, the bracket

    def begin(self, births: Births) -> list[Operation]:
        return [op for i, bracket in enumerate(self._brackets) for op in self._owned(i, bracket.begin(births))]

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        owner = self._owners[trial]
        return self._owned(owner, self._brackets[owner].validated(births, trial, length, metrics))

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        owner = self._owners[trial]
        return self._owned(owner, self._brackets[owner].exited(births, trial, reason, closed))

    def progress(self, going: Mapping[int, float]) -> float:
        shares: list[dict[int, float]] = [{} for _ in self._brackets]
        for trial, done in going.items():
            shares[self._owners[trial]][trial] = done
        done_each = [bracket.progress(share) for bracket, share in zip(self._brackets, shares, strict=True)]
        return sum(done_each) / len(done_each)

    def state(self) -> dict[str, Any]:
        return {"owners": self._owners.tolist(), "brackets": [bracket.state() for bracket in self._brackets]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._owners = array("i", state["owners"])
        for bracket, saved in zip(self._brackets, state["brackets"], strict=True):
            bracket.restore(saved)

    def _owned(self, owner: int, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self._owners.append(owner)
        return operations


def _fraction(done: float) -> float:
    return min(1.0, max(0.0, done)) if math.isfinite(done) else 0.0
