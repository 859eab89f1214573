"""The host of a run in the user's own process: no driver, no store."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .host import Flag, Outcome, Target, TrialHost
from .manifest import Manifest

Listener = Callable[[str, int, Mapping[str, Any]], None]


class LocalHost(TrialHost):
    """Keeps what a run reports in memory, and tells a listener.

    `target` is the length to train; `metric` with `smaller_is_better` says which validation is the best. `history` holds
    `(group, batches, metrics)` in order, `checkpoints` the manifests with their places, newest last.
    """

    stores = False  # its history ends with the process

    def __init__(
        self,
        target: Target,
        *,
        metric: str | None = None,
        smaller_is_better: bool = True,
        listener: Listener | None = None,
    ) -> None:
        self.preempted = Flag()
        self.history: list[tuple[str, int, dict[str, Any]]] = []
        self.checkpoints: list[tuple[Manifest, str]] = []
        self.outcome: Outcome | None = None
        self.best: float | None = None
        self._target = target
        self._metric, self._smaller = metric, smaller_is_better
        self._listener = listener

    def target(self) -> Target:
        return self._target

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self.history.append((group, batches, dict(metrics)))
        if self._listener:
            self._listener(group, batches, metrics)

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        self.report("validation", batches, metrics)
        best = self._is_best(metrics.get(self._metric) if self._metric else None)
        return Target(n=self._target.n, unit=self._target.unit, best=best)

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        self.checkpoints.append((manifest, storage))

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self.outcome = outcome

    def best_validation(self) -> float | None:
        return self.best

    def _is_best(self, value: Any) -> bool:
        """Tell whether a validation is the best so far; where no metric is named, each one is."""
        if self._metric is None:
            return True
        if not isinstance(value, (int, float)) or math.isnan(value):
            return False
        if self.best is None or (value < self.best if self._smaller else value > self.best):
            self.best = value
            return True
        return False


def print_report(group: str, batches: int, metrics: Mapping[str, Any]) -> None:
    """A listener that prints one line of JSON for each report."""
    sys.stdout.write(json.dumps({"group": group, "batches": batches, **metrics}, default=repr) + "\n")
