"""Changes in a home, as they occur."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from det_core.errors import StoreError

from ..store import ExperimentState, ExperimentSummary, Store, TrialsMark


class Change(NamedTuple):
    """The experiments that have changed, and the changed trials of those that run.

    An experiment has changed if it was made, changed or deleted, or if its driver died or returned.
    """

    experiments: frozenset[int]
    trials: Mapping[int, frozenset[int]]


class Watch:
    """Looks for changes in a home. Iterate over it to get each change.

    A change arrives at most `seconds` after its commit. Databases without a new commit are not
    read. Use it in one thread, and close it in the end.
    """

    def __init__(self, store: Store, seconds: float = 0.25) -> None:
        self._store, self._seconds = store, seconds
        self._version: tuple[object, ...] = ()
        self._known: dict[int, ExperimentSummary] = {}
        self._left: set[int] = set()
        self._seen: dict[int, tuple[tuple[object, ...], TrialsMark]] = {}
        self.look()

    def look(self) -> Change:
        """Return the changes since the last look, without waiting."""
        before, version = self._known, self._store.version()
        if version != self._version:
            listed = self._store.experiments.list(archived=None, unread={})
            self._version, self._known = version, {each.experiment.id: each for each in listed}
        going = {
            id: e for id, e in self._known.items() if e.experiment.state is ExperimentState.ACTIVE
        }
        left = {
            id for id, each in going.items() if self._store.experiments.orphaned(each.experiment)
        }
        changed = {
            id for id in before.keys() | self._known.keys() if before.get(id) != self._known.get(id)
        }
        changed |= left ^ self._left
        self._left = left
        trials = {
            id: found for id in going.keys() | self._seen.keys() if (found := self._trials(id))
        }
        self._seen = {id: seen for id, seen in self._seen.items() if id in going}
        return Change(frozenset(changed | trials.keys()), trials)

    def directories(self) -> list[Path]:
        """Return the directories where changes write files: the home, and experiments that run.

        The end of a driver process alone writes nothing there.
        """
        return [self._store.home, *(self._store.experiment_dir(id) for id in self._seen)]

    def _trials(self, id: int) -> frozenset[int]:
        with suppress(StoreError):
            (version, mark), now = self._seen.get(id, ((), None)), self._store.version(id)
            if version != now:
                rows, self._seen[id] = (
                    (found := self._store.trials.changed(id, mark))[0],
                    (now, found[1]),
                )
                return frozenset(row.id for row in rows if mark is not None or not row.state.ended)
        return frozenset()

    def __iter__(self) -> Iterator[Change]:
        while True:
            if (change := self.look()).experiments:
                yield change
            time.sleep(self._seconds)

    def close(self) -> None:
        """Close the files."""
        self._store.close()
