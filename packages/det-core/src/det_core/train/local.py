"""The host of a run in the user's own process, without a driver or a store."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoint.manifest import Manifest
from .host import Flag, Outcome, Target, TrialHost

Listener = Callable[[str, int, Mapping[str, Any]], None]


class LocalHost(TrialHost):
    """Keeps in memory what a run reports, and calls a listener.

    - `target`: the length to train.
    - `metric`, `smaller_is_better`: which validation is the best.
    - `history`: `(group, batches, metrics)` in order.
    - `checkpoints`: the manifests with their places, newest last.
    """

    # The history ends with the process.
    stores = False

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

    def limit(self, batches: int) -> None:
        """Train at most this many batches."""
        self._target = Target(n=min(self._target.n or batches, batches))

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
        """Return whether a validation is the best so far. Each one is if no metric is named."""
        if self._metric is None:
            return True
        if not isinstance(value, (int, float)) or math.isnan(value):
            return False
        if self.best is None or (value < self.best if self._smaller else value > self.best):
            self.best = value
            return True
        return False


def print_report(group: str, batches: int, metrics: Mapping[str, Any]) -> None:
    """Print one line of JSON for a report. This is a listener."""
    sys.stdout.write(
        json.dumps({"group": group, "batches": batches, **metrics}, default=repr) + "\n"
    )
