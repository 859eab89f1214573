"""What a `fit` says of its progress in a log: whole lines, few of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

_SECONDS = 10.0  # between two lines within an epoch
_PARTS = 10


class ProgressLines:
    """Writes a line when an epoch ends, and every tenth of one that takes long."""

    def __init__(self, epochs: int, batches: int | None) -> None:
        self._epochs, self._batches = epochs, batches
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """An epoch begins."""
        self._epoch, self._last = epoch, time.monotonic()
        self._next = self._part(1)

    def batch(self, batch: int) -> None:
        """A batch of the epoch begins, counted from 0."""
        if self._batches and batch >= self._next:
            if time.monotonic() - self._last >= _SECONDS:
                self._last = time.monotonic()
                self.say(f"{100 * batch // self._batches}% ({batch}/{self._batches} batches)")
            self._next = self._part(_PARTS * batch // self._batches + 1)

    def end(self, batches: int, logs: Mapping[str, Any]) -> None:
        """The epoch has ended, after so many batches in all."""
        self.say(f"batch {batches}: " + " ".join(f"{name}={shown(value)}" for name, value in sorted(logs.items())))

    def say(self, text: str) -> None:
        """Write a line about the epoch."""
        sys.stdout.write(f"epoch {self._epoch + 1}/{self._epochs}, {text}\n")
        sys.stdout.flush()

    def _part(self, part: int) -> float:
        return part * self._batches / _PARTS if self._batches else float("inf")


def shown(value: Any) -> str:
    """Return a metric in few characters."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
