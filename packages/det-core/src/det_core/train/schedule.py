"""When things are due in a run, in batches from the trial's start."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DetError
from .adapter import Adapter

NEVER = 2**62


@dataclass(frozen=True)
class Every:
    """Due at every multiple of `batches`. 0 means never."""

    batches: int

    def after(self, done: int) -> int:
        """Return the first due position after `done`."""
        return done - done % self.batches + self.batches if self.batches > 0 else NEVER

    def due(self, done: int) -> bool:
        return self.batches > 0 and done > 0 and done % self.batches == 0


class At:
    """Due at the positions of a container, such as a set, a list or a range.

    A container that cannot be iterated is tested position by position, up to `horizon` after the
    last.
    """

    def __init__(self, positions: Container[int] | Iterable[int], horizon: int = 100_000) -> None:
        self._container = positions
        self._horizon = horizon
        self._sorted: Sequence[int] | None = None
        if isinstance(positions, range):
            self._sorted = positions if positions.step > 0 else positions[::-1]
        elif isinstance(positions, Iterable):
            self._sorted = sorted(positions)

    def __repr__(self) -> str:
        return f"At({self._container!r})"

    def after(self, done: int) -> int:
        """Return the first due position after `done`, or a position where to call this again."""
        if self._sorted is not None:
            index = bisect.bisect_right(self._sorted, done)
            return self._sorted[index] if index < len(self._sorted) else NEVER
        ahead = range(done + 1, done + self._horizon)
        return next((n for n in ahead if self.due(n)), done + self._horizon)

    def due(self, done: int) -> bool:
        if self._sorted is not None:
            index = bisect.bisect_left(self._sorted, done)
            return index < len(self._sorted) and self._sorted[index] == done
        return isinstance(self._container, Container) and done in self._container


Period = Every | At


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is due when.

    - `policy`: which validations are followed by a checkpoint: `best`, `all` or `none`.
    - `metric`: the searcher's metric, which every validation must hold, or None without a searcher.
    - `validate_first`: validate before the first batch of a new trial.
    """

    report: Period = Every(100)
    validate: Period = Every(0)
    checkpoint: Period = Every(0)
    policy: str = "best"
    metric: str | None = None
    validate_first: bool = False

    def due(self, done: int) -> bool:
        """Return whether anything is due at `done`."""
        return self.report.due(done) or self.validate.due(done) or self.checkpoint.due(done)

    def after(self, done: int) -> int:
        """Return the first position after `done` where anything is due."""
        return min(self.report.after(done), self.validate.after(done), self.checkpoint.after(done))


def to_batches(n: int, unit: str, adapter: Adapter[Any]) -> int:
    """Convert a length to batches, with the adapter's epoch length or batch size."""
    if unit == "batches":
        return n
    if unit == "epochs":
        epoch = adapter.batches_per_epoch
        if not epoch:
            raise DetError(
                f"a length of {n} epochs cannot be counted, as the data has no length; give it in"
                " batches"
            )
        return n * epoch
    size = adapter.global_batch_size
    if not size:
        raise DetError(
            f"a length of {n} records cannot be counted without a global_batch_size; give it in"
            " batches"
        )
    return max(1, n // size) if n else 0
