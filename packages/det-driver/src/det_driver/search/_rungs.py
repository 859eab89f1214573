"""Successive halving: the ranks of a bracket's trials, and the arithmetic of rungs and brackets."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

_CHUNK = 8192


class Ranking:
    """Trials sorted by loss, the best (smallest) first.

    They are kept in chunks of at most 8192 packed numbers. Inserting therefore costs about the same
    at a million entries as at a thousand, and an entry takes 16 bytes.
    """

    def __init__(self) -> None:
        self._losses = [array("d")]
        self._trials = [array("q")]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, loss: float, trial: int, *, behind_ties: bool) -> int:
        """Insert an entry before or behind those of equal loss. Return how many come before it."""
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
        """Remove an entry. KeyError: there is none."""
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
        """Restore the state."""
        self._count = len(state["losses"])
        parts = [
            slice(start, start + _CHUNK // 2)
            for start in range(0, max(self._count, 1), _CHUNK // 2)
        ]
        self._losses = [array("d", state["losses"][part]) for part in parts]
        self._trials = [array("q", state["trials"][part]) for part in parts]


def _last(losses: array[float]) -> float:
    return losses[-1] if losses else math.inf


class Standings:
    """Ranks the trials of a bracket in each of its rungs, and counts them against `max_trials`.

    A trial that raises InvalidHP does not count.
    """

    def __init__(self, num_rungs: int, max_trials: int) -> None:
        self.rungs = [Ranking() for _ in range(num_rungs)]
        self.created = 0
        self.finished = 0
        self._invalid = 0
        self._max_trials = max_trials

    @property
    def wants_more(self) -> bool:
        """Whether there are trials left to create."""
        return self.created - self._invalid < self._max_trials

    @property
    def all_seen(self) -> bool:
        """Whether every trial has passed the lowest rung."""
        return len(self.rungs[0]) == self._max_trials

    def progress(self, lengths: Sequence[int], divisor: float) -> float:
        """Return the progress, 0 to 1, where the best 1/`divisor` of a rung continue to the next.

        Since trials do not wait until the best are known, more of them continue: about a standard
        deviation of that number.
        """
        if self.finished - self._invalid >= self._max_trials:
            return 1.0
        done, whole, expected, before, best = 0.0, 0.0, self._max_trials, 0, 1 / divisor
        for rung, length in zip(self.rungs, lengths, strict=True):
            done += (length - before) * len(rung)
            whole += (length - before) * max(len(rung), expected)
            expected, before = (
                int(expected * best + math.sqrt(expected * best * (1 - best))),
                length,
            )
        return done / whole

    def grow(self, count: int) -> None:
        """Note that `count` more trials are to be created."""
        self._max_trials += count

    def shrink(self) -> None:
        """Note that an invalid trial is not replaced."""
        self._max_trials -= 1

    def forget(self, trial: int, losses: Sequence[float]) -> None:
        """Remove an invalid trial from the rungs that it entered.

        `losses` are the losses with which it did, the lowest rung first.
        """
        self._invalid += 1
        for rung, loss in zip(self.rungs, losses, strict=False):
            rung.remove(loss, trial)

    def state(self) -> dict[str, Any]:
        """Return the rungs and the counts."""
        return {
            "rungs": [rung.state() for rung in self.rungs],
            "created": self.created,
            "invalid": self._invalid,
            "finished": self.finished,
            "max_trials": self._max_trials,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        for rung, saved in zip(self.rungs, state["rungs"], strict=True):
            rung.restore(saved)
        self.created = state["created"]
        self._invalid = state["invalid"]
        self.finished = state["finished"]
        self._max_trials = state.get("max_trials", self._max_trials)


def power(base: float, exponent: int) -> float:
    """Return `base ** exponent`, or 1e300 where that overflows."""
    try:
        return float(base) ** exponent
    except OverflowError:
        return 1e300


def rung_lengths(num_rungs: int, divisor: float, max_length: int) -> list[int]:
    """Return the absolute length of every rung: `max_length` by powers of `divisor`, at least 1.

    >>> rung_lengths(4, 2, 10)
    [1, 2, 5, 10]
    """
    return [
        max(int(max_length / power(divisor, num_rungs - 1 - rung)), 1) for rung in range(num_rungs)
    ]


def initial_trials(
    max_concurrent_trials: int, max_trials: int, divisor: float, num_rungs: int
) -> int:
    """Return the number of trials with which a bracket starts.

    Without a limit, it is the number that takes one of them to the top.
    """
    if max_concurrent_trials > 0:
        return min(max_concurrent_trials, max_trials)
    return int(min(power(divisor, num_rungs - 1), max_trials))


def bracket_rungs(mode: str, max_rungs: int) -> list[int]:
    """Return the number of rungs of each bracket of a mode.

    The bracket that stops most trials early is first.

    >>> bracket_rungs("standard", 4)
    [4, 3, 2]
    """
    fewest = {"conservative": 1, "standard": (max_rungs - 1) // 2 + 1, "aggressive": max_rungs}[
        mode
    ]
    return list(range(max_rungs, fewest - 1, -1))


def useful_rungs(max_rungs: int, divisor: float, max_length: int, max_trials: int) -> int:
    """Return for how many of `max_rungs` rungs the length and the number of trials suffice."""

    def room(size: int) -> int:
        return int(math.log(size) / math.log(divisor)) + 1

    return min(max_rungs, room(max_length), room(max_trials))


def bracket_max_trials(max_trials: int, divisor: float, rungs: Sequence[int]) -> list[int]:
    """Share `max_trials` among brackets so that each trains about equally long.

    `rungs` is sorted, most rungs first. Each bracket gets at least one trial. Brackets for which no
    trial is left are dropped.

    >>> bracket_max_trials(20, 3, [3, 2, 1])
    [12, 5, 3]
    """
    rungs = rungs[:max_trials]
    weights = [power(divisor, count - 1) / count for count in rungs]
    shares = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    shares[0] += max(max_trials - sum(shares), 0)
    for _ in range(sum(shares) - max_trials):
        shares[shares.index(max(shares))] -= 1
    return shares


def bracket_max_concurrent_trials(
    max_concurrent_trials: int, divisor: float, max_trials: Sequence[int]
) -> list[int]:
    """Share `max_concurrent_trials` evenly among brackets, at least one for each.

    0 stands for a default number.

    >>> bracket_max_concurrent_trials(11, 3, [9, 3, 1])
    [4, 4, 3]
    """
    if max_concurrent_trials == 0:
        return [max(max_trials[-1], int(divisor))] * len(max_trials)
    each, left = divmod(max(max_concurrent_trials, len(max_trials)), len(max_trials))
    return [each + (bracket < left) for bracket in range(len(max_trials))]
