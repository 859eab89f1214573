"""The long lists, experiments and trials, as they were last seen: so that only what has changed is read, and sent."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 16
"""Of experiments whose trials are remembered: the newest ones that were asked for."""


@dataclass(frozen=True)
class Newer:
    """What is newer than a version, or `whole`: everything."""

    version: str
    whole: bool
    rows: list[Any]
    gone: list[int]


@dataclass
class Rows:
    """Rows by their numbers, each with the version in which it changed last."""

    name: str = field(default_factory=lambda: secrets.token_hex(4))
    version: int = 0
    rows: dict[int, Any] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    memory: Any = None
    """What the next look needs."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, changed: Mapping[int, Any], gone: set[int]) -> None:
        """Take over rows that are not as they were, and forget some."""
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
        """Return what a client that has the version `since` does not know yet; everything, where that is of other rows."""
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
