"""Losses in order, each with its trial."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

_CHUNK = 2048
_GROUP = 32


class Ranking:
    """Trials sorted by loss, the best (smallest) first.

    Kept in chunks of at most 2048 packed numbers, whose sizes are added up by groups of 32 chunks, so that inserting
    costs about the same at a million entries as at a thousand, and an entry takes 16 bytes.
    """

    def __init__(self) -> None:
        self._losses: list[array[float]] = []
        self._trials: list[array[int]] = []
        self._last: list[float] = []  # the largest loss of each chunk
        self._sizes: list[int] = []
        self._groups: list[int] = []  # the sizes of 32 chunks each, added up
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, loss: float, trial: int, *, behind_ties: bool) -> int:
        """Insert before or behind those of equal loss, and return how many come before it."""
        self._count += 1
        if not self._last:
            self._append_chunk(array("d", [loss]), array("q", [trial]))
            self._regroup()
            return 0
        bisect = bisect_right if behind_ties else bisect_left
        chunk = min(bisect(self._last, loss), len(self._last) - 1)
        losses = self._losses[chunk]
        place = bisect(losses, loss)
        losses.insert(place, loss)
        self._trials[chunk].insert(place, trial)
        self._last[chunk] = losses[-1]
        self._sizes[chunk] += 1
        group = chunk // _GROUP
        self._groups[group] += 1
        rank = sum(self._groups[:group]) + sum(self._sizes[group * _GROUP : chunk]) + place
        if len(losses) > _CHUNK:
            self._split(chunk)
        return rank

    def remove(self, loss: float, trial: int) -> None:
        """Remove an entry; KeyError where there is none."""
        for chunk in range(bisect_left(self._last, loss), len(self._last)):
            losses, trials = self._losses[chunk], self._trials[chunk]
            for place in range(bisect_left(losses, loss), bisect_right(losses, loss)):
                if trials[place] == trial:
                    self._delete(chunk, place)
                    return
        raise KeyError((loss, trial))

    def at(self, rank: int) -> int:
        """Return the trial that has `rank` others before it."""
        for group, total in enumerate(self._groups):
            if rank < total:
                return self._at(group * _GROUP, rank)
            rank -= total
        raise IndexError(rank)

    def state(self) -> dict[str, Any]:
        """Return the losses in order and their trials."""
        return {
            "losses": [loss for chunk in self._losses for loss in chunk],
            "trials": [trial for chunk in self._trials for trial in chunk],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` says and nothing else."""
        for chunks in (self._losses, self._trials, self._last, self._sizes, self._groups):
            chunks.clear()
        losses, trials = array("d", state["losses"]), array("q", state["trials"])
        self._count = len(losses)
        for start in range(0, len(losses), _CHUNK // 2):
            part = slice(start, start + _CHUNK // 2)
            self._append_chunk(losses[part], trials[part])
        self._regroup()

    def _at(self, chunk: int, rank: int) -> int:
        while rank >= self._sizes[chunk]:
            rank -= self._sizes[chunk]
            chunk += 1
        return self._trials[chunk][rank]

    def _regroup(self) -> None:
        self._groups = [sum(self._sizes[start : start + _GROUP]) for start in range(0, len(self._sizes), _GROUP)]

    def _append_chunk(self, losses: array[float], trials: array[int]) -> None:
        self._losses.append(losses)
        self._trials.append(trials)
        self._last.append(losses[-1])
        self._sizes.append(len(losses))

    def _split(self, chunk: int) -> None:
        half = self._sizes[chunk] // 2
        losses, trials = self._losses[chunk], self._trials[chunk]
        self._losses[chunk : chunk + 1] = [losses[:half], losses[half:]]
        self._trials[chunk : chunk + 1] = [trials[:half], trials[half:]]
        self._sizes[chunk : chunk + 1] = [half, len(losses) - half]
        self._last[chunk : chunk + 1] = [losses[half - 1], losses[-1]]
        self._regroup()

    def _delete(self, chunk: int, place: int) -> None:
        self._count -= 1
        self._sizes[chunk] -= 1
        del self._losses[chunk][place], self._trials[chunk][place]
        if self._sizes[chunk]:
            self._last[chunk] = self._losses[chunk][-1]
        else:
            del self._losses[chunk], self._trials[chunk], self._last[chunk], self._sizes[chunk]
        self._regroup()
