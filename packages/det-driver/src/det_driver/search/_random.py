"""Random search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_core.config import Hyperparameter, Random

from ._lengths import length_if_any
from ._method import Births, Method
from ._search import Search
from .base import Close, Exit, Operation


def make(config: Random, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a random search."""
    method = RandomSearch(
        max_trials=config.max_trials,
        max_concurrent_trials=config.max_concurrent_trials,
        max_length=length_if_any(config.max_length, "searcher.max_length"),
    )
    return Search(method, hyperparameters, seed)


class RandomSearch(Method):
    """Trains `max_trials` trials of hyperparameters drawn at random, each to `max_length`.

    At most `max_concurrent_trials` are open at a time (0: no limit). A trial that raises InvalidHP is replaced and
    does not count, unless `replace_invalid` is false. `max_length` None leaves it to the trial to end.
    """

    def __init__(
        self,
        *,
        max_trials: int,
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
        replace_invalid: bool = True,
    ) -> None:
        self._max_trials = max_trials
        self._max_concurrent = max_concurrent_trials or max_trials
        self._max_length = max_length
        self._replace_invalid = replace_invalid
        self._invalid = 0
        self._finished = 0

    def begin(self, births: Births) -> list[Operation]:
        return births.start(min(self._max_trials, self._max_concurrent), self._max_length)

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self._max_length is None or length < self._max_length:
            return []
        return [Close(trial)]

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        if reason is Exit.INVALID_HP and self._replace_invalid and not closed:
            self._invalid += 1
        else:
            self._finished += 1
        more = births.count - self._invalid < self._max_trials
        return births.start(1, self._max_length) if more else []

    def progress(self, going: Mapping[int, float]) -> float:
        return (self._finished + sum(going.values())) / self._max_trials

    def state(self) -> dict[str, Any]:
        return {"invalid": self._invalid, "finished": self._finished}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._invalid = state["invalid"]
        self._finished = state["finished"]
