"""Grid search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_core.config import Grid as GridConfig
from det_core.config import Hyperparameter

from ._axes import Grid
from ._lengths import length_if_any
from ._method import Births, Method
from ._search import Search
from .base import Close, Exit, Operation, Train


def make(config: GridConfig, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return a grid search; ConfigError where a range has no count."""
    method = GridSearch(
        hyperparameters,
        max_concurrent_trials=config.max_concurrent_trials,
        max_length=length_if_any(config.max_length, "searcher.max_length"),
    )
    return Search(method, hyperparameters, seed)


class GridSearch(Method):
    """Trains one trial for every point of the grid, from the last point to the first, each to `max_length`.

    At most `max_concurrent_trials` are open at a time (0: no limit). A trial that raises InvalidHP is not replaced.
    `max_length` None leaves it to the trial to end.
    """

    def __init__(
        self,
        hyperparameters: Mapping[str, Hyperparameter],
        *,
        max_concurrent_trials: int = 0,
        max_length: int | None = None,
    ) -> None:
        self._grid = Grid(hyperparameters)
        self._left = len(self._grid)
        self._max_concurrent = max_concurrent_trials or self._left
        self._max_length = max_length
        self._finished = 0

    def begin(self, births: Births) -> list[Operation]:
        return [op for _ in range(min(self._left, self._max_concurrent)) for op in self._next(births)]

    def validated(self, births: Births, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self._max_length is None or length < self._max_length:
            return []
        return [Close(trial)]

    def exited(self, births: Births, trial: int, reason: Exit, closed: bool) -> list[Operation]:
        self._finished += 1
        return self._next(births)

    def progress(self, going: Mapping[int, float]) -> float:
        return (self._finished + sum(going.values())) / len(self._grid)

    def state(self) -> dict[str, Any]:
        return {"left": self._left, "finished": self._finished}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._left = state["left"]
        self._finished = state["finished"]

    def _next(self, births: Births) -> list[Operation]:
        if not self._left:
            return []
        self._left -= 1
        create = births.create(self._grid[self._left])
        return [create, Train(create.trial, self._max_length)]
