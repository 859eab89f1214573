"""A search that ends after a total length or when a trial is good enough, and takes more trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from det_core.errors import ConfigError, MetricError

from ..space import Expression, lookup_in
from ._search import shutdown
from .base import Close, Create, EarlierResult, Exit, Operation, Searcher, Shutdown


class Budgeted(Searcher):
    """Runs any searcher until `stop` is called, a total length is reached, or a condition holds.

    `most` is the total over all trials, in the searcher's own unit. `stop_when` is a condition on
    the metrics of a validation. At the end every open trial is closed, and the searcher inside gets
    no further events.
    """

    def __init__(
        self, searcher: Searcher, stop_when: str | None = None, most: int | None = None
    ) -> None:
        self.metric = searcher.metric
        self.time_metric = searcher.time_metric
        self.limits = searcher.limits
        # States of versions below 100 are in an earlier format of this class.
        self.version = 100 + searcher.version
        self._searcher = searcher
        self._stop_when = _condition(stop_when)
        self._most = most
        # How long each trial has trained that is not closed.
        self._open: dict[int, int] = {}
        self._alive: set[int] = set()
        self._exits: Counter[str] = Counter()
        self._trained = 0

    def start(self) -> list[Operation]:
        return self._noted(self._searcher.start())

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if self.stopped:
            return []
        if trial in self._open:
            self._trained += max(0, length - self._open[trial])
            self._open[trial] = max(length, self._open[trial])
        if self._is_enough(metrics):
            return self.stop()
        return self._noted(self._searcher.validated(trial, length, metrics))

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        if trial not in self._alive:
            return []
        self._alive.remove(trial)
        self._open.pop(trial, None)
        self._exits[reason] += 1
        if not self.stopped:
            return self._noted(self._searcher.exited(trial, reason))
        return [] if self._alive else [shutdown(self._exits)]

    def stop(self) -> list[Operation]:
        if self.stopped:
            return []
        self.stopped = True
        closes: list[Operation] = [Close(trial) for trial in self._open]
        self._open.clear()
        return closes

    def extend(self, count: int, enqueued: Sequence[Mapping[str, Any]] = ()) -> list[Operation]:
        if self.stopped:
            raise ConfigError(
                "the search has stopped, as its budget or condition says; start another one"
            )
        return self._noted(self._searcher.extend(count, enqueued))

    @property
    def may_fill(self) -> bool:
        return not self.stopped and self._searcher.may_fill

    def fill(self, count: int) -> list[Operation]:
        return [] if self.stopped else self._noted(self._searcher.fill(count))

    def learn(self, results: Sequence[EarlierResult]) -> list[str]:
        return self._searcher.learn(results)

    def stop_at(self, condition: str) -> list[Operation]:
        try:
            self._stop_when = _condition(condition)
        except ValueError as error:
            raise ConfigError(f"the condition to stop is {condition!r}: {error}") from None
        if self._stop_when is not None and not self._stop_when.names:
            raise ConfigError(
                f"the condition to stop is {condition!r}, which names no metric; name one"
            )
        return []

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        if self.stopped:
            ended = self._exits.total()
            return ended / max(ended + len(self._alive), 1)
        spent = 0.0 if self._most is None else self._trained / self._most
        return max(self._searcher.progress(trial_progress), min(spent, 1.0))

    def state(self) -> dict[str, Any] | None:
        searcher = self._searcher.state()
        if searcher is None:
            return None
        return {
            "searcher": searcher,
            "open": [[trial, length] for trial, length in self._open.items()],
            "alive": sorted(self._alive),
            "exits": dict(self._exits),
            "trained": self._trained,
            "stopped": self.stopped,
            "stop_when": None if self._stop_when is None else self._stop_when.text,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._searcher.restore(state["searcher"])
        self._open = dict(state["open"])
        self._alive = set(state["alive"])
        self._exits = Counter(state["exits"])
        self._trained = state["trained"]
        self.stopped = state["stopped"]
        self._stop_when = _condition(state["stop_when"])

    def _is_enough(self, metrics: Mapping[str, float]) -> bool:
        if self._most is not None and self._trained >= self._most:
            return True
        if self._stop_when is None:
            return False
        try:
            return self._stop_when.holds(lookup_in(metrics), undefined=False)
        except TypeError as error:
            raise MetricError(f"searcher.stop_when is {self._stop_when.text!r}: {error}") from None

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self._alive.add(operation.trial)
                self._open[operation.trial] = 0
            elif isinstance(operation, Close):
                self._open.pop(operation.trial, None)
            elif isinstance(operation, Shutdown):
                self._open.clear()
        return operations


def _condition(text: str | None) -> Expression | None:
    return None if text is None else Expression(text)
