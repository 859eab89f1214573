"""A search: a method, the trials it made, and what became of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from det_core.config import Hyperparameter

from ._method import Births, Method
from .base import Close, Create, Exit, Operation, Searcher, Shutdown

_OPEN, _CLOSED, _ENDED = b"oce"


class Search(Searcher):
    """Runs a method and keeps from it what it need not know.

    A validation of a trial that is closed or ended is ignored (Determined's ASHA took it for a new result), and so
    is a second exit. The search shuts down when every trial has ended.
    """

    def __init__(self, method: Method, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> None:
        self.metric = method.metric
        self.time_metric = method.time_metric
        self._method = method
        self._births = Births(hyperparameters, seed)
        self._lives = bytearray()  # one letter for each trial
        self._exits = dict.fromkeys(Exit, 0)
        self._ended = 0

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
        self._ended += 1
        self._exits[reason] += 1
        operations = self._noted(self._method.exited(self._births, trial, reason, life == _CLOSED))
        if self._ended == self._births.count:
            operations.append(self._shutdown())
        return operations

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        going = {trial: _fraction(done) for trial, done in trial_progress.items() if self._life(trial) != _ENDED}
        if self._ended and self._ended == self._births.count:
            return 1.0
        return _fraction(self._method.progress(going))

    def state(self) -> dict[str, Any]:
        return {
            "births": self._births.state(),
            "lives": self._lives.decode("ascii"),
            "exits": {reason.value: count for reason, count in self._exits.items()},
            "method": self._method.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._births.restore(state["births"])
        self._lives = bytearray(state["lives"], "ascii")
        self._exits = {Exit(reason): count for reason, count in state["exits"].items()}
        self._ended = sum(self._exits.values())
        self._method.restore(state["method"])

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

    def _shutdown(self) -> Shutdown:
        return Shutdown(
            failed=self._exits[Exit.ERRORED] == self._ended,
            cancelled=self._exits[Exit.CANCELED] == self._ended,
        )


def _fraction(done: float) -> float:
    return min(1.0, max(0.0, done)) if math.isfinite(done) else 0.0
