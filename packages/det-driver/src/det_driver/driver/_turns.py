"""Whose turn it is to get slots."""

from __future__ import annotations

from ..store import Lease, Store
from ._queue import Queue
from ._trials import Live


class Turns:
    """Leases slots for the trials of a queue, in order of creation.

    Where it was refused, it asks again only after `look_again`: slots come back when a run ends, and now and then from
    another experiment.
    """

    def __init__(self, store: Store, experiment_id: int, queue: Queue, *, each: int, total: int) -> None:
        self._store, self._id, self._queue = store, experiment_id, queue
        self._each, self._total = each, max(total, 1)
        self._refused = False
        self._waits = False  # on the waiting list of slots

    def look_again(self) -> None:
        """Slots may have come back."""
        self._refused = False

    def next(self, running: int) -> tuple[Live, Lease] | None:
        """Return the trial to start now and its slots; None where there is no trial, or no slot for the first."""
        if self._refused:
            return None
        live = self._queue.first
        if live is None:
            self._stop_waiting()
            return None
        full = self._each == 0 and running >= self._total  # what needs no slot is to leave some of the machine, too
        lease = None if full else self._store.slots.lease(self._id, self._each, self._total)
        if lease is None:
            self._refused = self._waits = True
            return None
        return live, lease

    def _stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._store.slots.stop_waiting(self._id)
