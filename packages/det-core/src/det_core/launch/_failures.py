"""Which rank failed first, and what it said."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from ._output import Tails, say

_RECENT_SECONDS = 10.0


@dataclass(frozen=True)
class _Failure:
    rank: int
    status: int
    since: float


class Failures:
    """The ranks that failed, each since its last traceback began or, where it wrote none, since it ended.

    When a rank fails, others soon fail of that, and may end before it does; but it was the first to say so.
    """

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._found: list[_Failure] = []
        self._first_exit = 0.0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, rank: int, status: int, *, was_ended: bool) -> None:
        """Take a rank's exit status. One that was ended by its launcher failed only where it has just said so."""
        self._first_exit = self._first_exit or time.monotonic()
        since = self._tails.failing_since.get(rank, 0.0)
        failing = since > self._first_exit - _RECENT_SECONDS  # an older traceback was of something that it survived
        if not was_ended:
            self._found.append(_Failure(rank, status, since if failing else time.monotonic()))
        elif failing:
            self._found.append(_Failure(rank, max(1, status), since))

    def report(self, *, size: int, passed_on: Collection[int]) -> int:
        """Say which rank failed first, and return the exit status; a rank that a passed-on signal ended did not fail."""
        # Nothing kills itself with SIGKILL: the others found that one gone, and may have said so before it was known.
        first = min(self._found, key=lambda failure: (failure.status != -signal.SIGKILL, failure.since))
        if -first.status not in passed_on:
            how = f"was ended by {_named(-first.status)}" if first.status < 0 else f"failed with status {first.status}"
            words = self._tails.last_words(first.rank)
            others = " first; the others were ended" if size > 1 else ""
            say(f"rank {first.rank} {how}{others}.{' Its last words:' if words else ''}", words)
        return 128 - first.status if first.status < 0 else first.status


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
