"""Losses in order, each with its trial."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import chain
from typing import Any

_CHUNK = 8192


class Ranking:
    """Trials sorted by loss, the best (smallest) first.

    Kept in chunks of at most 8192 packed numbers, so that inserting costs about the same at a million entries as at a
    thousand, and an entry takes 16 bytes.
    """

    def __init__(self) -> None:
        self._losses = [array("d")]
        self._trials = [array("q")]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, loss: float, trial: int, *, behind_ties: bool) -> int:
        """Insert before or behind those of equal loss, and return how many come before it."""
        bisect = bisect_right if behind_ties else bisect_left
        chunk = min(bisect(self._losses, loss, key=_last), len(self._losses) - 1)
        losses, trials = self._losses[chunk], self._trials[chunk]
        place = bisect(losses, loss)
        losses.insert(place, loss)
        trials.insert(place, trial)
        self._count += 1
        if len(losses) > _CHUNK:
            half = len(losses) // 2
            self._losses[chunk : chunk + 1] = [losses[:half], losses[half:]]
            self._trials[chunk : chunk + 1] = [trials[:half], trials[half:]]
        return sum(map(len, self._losses[:chunk])) + place

    def remove(self, loss: float, trial: int) -> None:
        """Remove an entry; KeyError where there is none."""
        for chunk in range(bisect_left(self._losses, loss, key=_last), len(self._losses)):
            losses, trials = self._losses[chunk], self._trials[chunk]
            for place in range(bisect_left(losses, loss), bisect_right(losses, loss)):
                if trials[place] == trial:
                    del losses[place], trials[place]
                    self._count -= 1
                    if not losses and self._count:
                        del self._losses[chunk], self._trials[chunk]
                    return
        raise KeyError((loss, trial))

    def at(self, rank: int) -> int:
        """Return the trial that has `rank` others before it."""
        for trials in self._trials:
            if rank < len(trials):
                return trials[rank]
            rank -= len(trials)
        raise IndexError(rank)

    def state(self) -> dict[str, Any]:
        """Return the losses in order and their trials."""
        return {"losses": [*chain(*self._losses)], "trials": [*chain(*self._trials)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` says and nothing else."""
        self._count = len(state["losses"])
        parts = [slice(start, start + _CHUNK // 2) for start in range(0, max(self._count, 1), _CHUNK // 2)]
        self._losses = [array("d", state["losses"][part]) for part in parts]
        self._trials = [array("q", state["trials"][part]) for part in parts]


def _last(losses: array[float]) -> float:
    return losses[-1] if losses else math.inf
