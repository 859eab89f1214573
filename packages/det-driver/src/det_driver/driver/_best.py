"""The best value of a search so far, without asking every trial."""

from __future__ import annotations

import heapq


class Best:
    """Keeps each trial's best value of the searcher's metric, and knows the best of all.

    A trial that goes back to a checkpoint may lose its best value; `put` says so.
    """

    def __init__(self, smaller_is_better: bool) -> None:
        self._sign = 1.0 if smaller_is_better else -1.0
        self._losses: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, trial: int, value: float | None) -> None:
        """A trial's best value is this now."""
        if value is None:
            self._losses.pop(trial, None)
            return
        loss = self._sign * value
        if self._losses.get(trial) != loss:
            self._losses[trial] = loss
            heapq.heappush(self._heap, (loss, trial))

    def offer(self, trial: int, value: float) -> None:
        """A trial reported this value; it counts if it is the trial's best."""
        before = self._losses.get(trial)
        if before is None or self._sign * value < before:
            self.put(trial, value)

    def beaten_by(self, value: float) -> bool:
        """Tell whether this would be the best of all."""
        best = self.value
        return best is None or self._sign * value < self._sign * best

    @property
    def value(self) -> float | None:
        """The best value, or None before there is any."""
        while self._heap:
            loss, trial = self._heap[0]
            if self._losses.get(trial) == loss:
                return self._sign * loss
            heapq.heappop(self._heap)
        return None
