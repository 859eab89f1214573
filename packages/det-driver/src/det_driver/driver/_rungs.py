"""How many trials of a search have trained to which length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Rung:
    """One length that a searcher asks for: how many trials have reached it, and how many are on the way.

    In searches without rungs it is the only length, or one of pbt's rounds.
    """

    length: int
    reached: int = 0
    under_way: int = 0


class Rungs:
    """Counted as the search goes on, so that it costs the same for any number of trials."""

    def __init__(self) -> None:
        self._rungs: dict[int, Rung] = {}

    def aim(self, length: int | None, trials: int = 1) -> None:
        """A trial sets out for a length, or with -1 gives it up."""
        if length is not None:
            self._of(length).under_way += trials

    def reach(self, length: int | None) -> None:
        """A trial has reached the length that it set out for."""
        if length is not None:
            self._of(length).under_way -= 1
            self._of(length).reached += 1

    def __iter__(self) -> Iterator[Rung]:
        return iter(sorted(self._rungs.values(), key=lambda rung: rung.length))

    def _of(self, length: int) -> Rung:
        return self._rungs.setdefault(length, Rung(length))
