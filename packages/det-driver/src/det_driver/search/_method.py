"""A way to search, without the bookkeeping that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from det_core.config import Hyperparameter

from ._rng import RandomState
from ._sampling import sampler
from .base import Create, Exit, Operation, Train

_REQUEST_ID_WORDS = 4


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

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what it remembers, as JSON can hold it."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the method whose state this is."""
