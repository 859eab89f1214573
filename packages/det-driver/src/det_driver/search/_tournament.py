"""Several searches at once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ._method import Births, Method
from .base import Create, Exit, Operation


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
