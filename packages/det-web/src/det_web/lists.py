"""Caches the lists of experiments and trials, so that only changes are read and sent."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 16
"""The number of experiments whose trials are cached, those requested last."""


@dataclass(frozen=True)
class Newer:
    """The rows that are newer than a version. All rows if `whole`."""

    version: str
    whole: bool
    rows: list[Any]
    gone: list[int]


@dataclass
class Rows:
    """Rows by number, each with the version in which it changed last."""

    name: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    rows: dict[int, Any] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    memory: Any = None
    """State for the next update."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, changed: Mapping[int, Any], gone: set[int]) -> None:
        """Set the rows that have changed, and remove those that are gone."""
        if changed or gone:
            self.version += 1
        for id, row in changed.items():
            self.rows[id] = row
            self.stamps[id] = self.version
            self.gone.pop(id, None)
        for id in gone:
            del self.rows[id], self.stamps[id]
            self.gone[id] = self.version

    def newer(self, since: str | None) -> Newer:
        """Return the rows that are newer than the client's version `since`.

        Returns all rows where `since` is the version of another list.
        """
        name, _, number = (since or "").partition(".")
        known = name == self.name and number.isdecimal()
        after = int(number) if known else -1
        found = [row for id, row in self.rows.items() if self.stamps[id] > after]
        gone = [id for id, stamp in self.gone.items() if stamp > after] if known else []
        return Newer(f"{self.name}.{self.version}", not known, found, gone)


class Lists:
    """All lists of one server."""

    def __init__(self) -> None:
        self._trials: OrderedDict[int, Rows] = OrderedDict()
        self._lock = threading.Lock()
        self.experiments = Rows()

    def trials(self, experiment_id: int) -> Rows:
        """Return the rows of an experiment's trials."""
        with self._lock:
            found = self._trials.setdefault(experiment_id, Rows())
            self._trials.move_to_end(experiment_id)
            while len(self._trials) > _MOST:
                self._trials.popitem(last=False)
            return found
