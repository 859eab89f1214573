"""The trials of a search that want a slot."""

from __future__ import annotations

import heapq

from ._trials import Live


class Queue:
    """Trials that are to be trained and are not, in order of creation; each call costs the same for a million of them."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._trials: dict[int, Live] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def add(self, live: Live) -> None:
        """Take a trial if it wants a slot and is not listed yet."""
        request = live.plan.request
        if live.queued and request not in self._trials:
            self._trials[request] = live
            heapq.heappush(self._heap, request)

    def discard(self, live: Live) -> None:
        """Forget a trial that has started or ended."""
        self._trials.pop(live.plan.request, None)

    @property
    def first(self) -> Live | None:
        """The trial whose turn it is."""
        while self._heap:
            live = self._trials.get(self._heap[0])
            if live is not None and live.queued:
                return live
            self._trials.pop(heapq.heappop(self._heap), None)
        return None
