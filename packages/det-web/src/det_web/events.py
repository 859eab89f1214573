"""/api/v1/events: what has changed, told to all pages that are open, by one thread that looks at the home."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from det_core.errors import DetError
from det_driver.client import Change, Client, Watch
from det_driver.store import Store

from .wake import Wake

LOOK_SECONDS = 0.2
"""The least time between two looks: a change is to be seen within half a second."""
AT_ONCE = 8
STEADY_SECONDS = 5.0
"""Of changes that do not end, `AT_ONCE` are told as they come, and then what there is every so many seconds: pages are not to
take from the training what they look at. One more is told at once for every so many seconds that passed."""
PATIENCE_SECONDS = 3.0
"""The most time between two: what nobody hears of, such as a driver that was killed, is found then."""
ALIVE_SECONDS = 15.0
MOST_IDS = 500
"""So many numbers are named; of more it is said that they are many."""


class Live:
    """Those who listen; the home is looked at only while there is one."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._queues: set[asyncio.Queue[Change]] = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Whoever comes as the thread ends starts another one."""

    async def answer(self, request: Request) -> Response:
        """Tell one page of changes, as long as it listens."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._told(), 200, headers, "text/event-stream")

    async def _told(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        with self._lock:
            self._queues.add(queue)
            if self._thread is None:
                loop = asyncio.get_running_loop()
                self._thread = threading.Thread(target=self._look, args=(loop,), name="det-web-events", daemon=True)
                self._thread.start()
        try:
            yield b"retry: 1000\n" + event("hello", {})
            while True:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        changes = [await queue.get()]
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                while not queue.empty():
                    changes.append(queue.get_nowait())
                for part in _parts(changes):
                    yield part
        finally:
            self._queues.discard(queue)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        wake, watch = Wake(), None
        left, since = float(AT_ONCE), time.monotonic()
        while self._is_heard() and not loop.is_closed():
            try:
                watch = watch or self._opened()
                change = watch.look() if watch is not None else None
            except (DetError, OSError):
                watch = None  # the home is gone, or is being made: look again
                change = None
            if change is not None and change.experiments:
                loop.call_soon_threadsafe(self._tell, change)
                left -= 1
            left, since = min(AT_ONCE, left + (time.monotonic() - since) / STEADY_SECONDS), time.monotonic()
            time.sleep(max(LOOK_SECONDS, STEADY_SECONDS * -left))
            wake.watch(watch.directories() if watch is not None else ())
            wake.wait(PATIENCE_SECONDS - LOOK_SECONDS if watch is not None and wake.hears else LOOK_SECONDS)
        wake.close()
        if watch is not None:
            watch.close()

    def _is_heard(self) -> bool:
        with self._lock:
            if not self._queues:
                self._thread = None
            return bool(self._queues)

    def _opened(self) -> Watch | None:
        return Client(self._home).watch() if Store.is_at(self._home) else None

    def _tell(self, change: Change) -> None:
        for queue in self._queues:
            queue.put_nowait(change)


def _parts(changes: list[Change]) -> list[bytes]:
    experiments = sorted({id for change in changes for id in change.experiments})
    trials: dict[int, set[int]] = {}
    for change in changes:
        for id, of in change.trials.items():
            trials.setdefault(id, set()).update(of)
    parts = [event("experiments", {"ids": experiments if len(experiments) <= MOST_IDS else None})]
    for id, ids in trials.items():
        parts.append(event("trials", {"experiment": id, "ids": sorted(ids) if len(ids) <= MOST_IDS else None}))
    return parts


def event(name: str, data: Any) -> bytes:
    """Return one event as it is sent."""
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
