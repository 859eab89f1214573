"""/api/v1/events: sends changes of the home to all open pages. One thread looks for them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from det_core.errors import DetError
from det_core.support.threads import start_thread
from det_driver.client import Change, Client, Watch
from det_driver.store import Store, Visible

from .endpoints import visible_to

LOOK_SECONDS = 0.2
"""The least time between two looks. A change is to be seen within half a second."""
AT_ONCE = 8
STEADY_SECONDS = 5.0
"""Limits how often changes are sent, so that pages take little processor time from the training.
The first `AT_ONCE` changes are sent as they come, and then one for each such period."""
PATIENCE_SECONDS = 3.0
"""The most time between two looks. inotify does not report everything, such as a killed driver."""
ALIVE_SECONDS = 15.0
MOST_IDS = 500
"""The most numbers that an event has. With more, it says only that there are many."""


class Live:
    """The open pages. The home is looked at only while there is one."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._queues: set[asyncio.Queue[Change | None]] = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Guards the check whether a thread runs. The thread ends when no page is open, and the
        next page starts another."""

    async def serve(self, request: Request) -> Response:
        """Send changes to one page, until it disconnects."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._stream(partial(visible_to, request)), 200, headers, "text/event-stream"
        )

    async def _stream(
        self, look: Callable[[], Visible | None] = lambda: None
    ) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        with self._lock:
            self._queues.add(queue)
            if self._thread is None:
                loop = asyncio.get_running_loop()
                self._thread = start_thread(
                    self._watch_changes,
                    loop,
                    name="det-web-events",
                    failed=partial(self._fail, loop),
                )
        try:
            yield b"retry: 1000\n" + event("hello", {})
            while True:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        first = await queue.get()
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                if first is None:
                    return
                changes = [first]
                while not queue.empty():
                    changes += filter(None, [queue.get_nowait()])
                # Who sees an experiment may change.
                for part in await run_in_threadpool(_parts, changes, look):
                    yield part
        finally:
            self._queues.discard(queue)

    def _watch_changes(self, loop: asyncio.AbstractEventLoop) -> None:
        wake, watch = Wake(), None
        left, since = float(AT_ONCE), time.monotonic()
        while self._has_pages() and not loop.is_closed():
            try:
                watch = watch or self._opened()
                change = watch.look() if watch is not None else None
            except (DetError, OSError):
                # The home is gone, or is being created.
                watch = None
                change = None
            if change is not None and change.experiments:
                loop.call_soon_threadsafe(self._publish, change)
                left -= 1
            left, since = (
                min(AT_ONCE, left + (time.monotonic() - since) / STEADY_SECONDS),
                time.monotonic(),
            )
            time.sleep(max(LOOK_SECONDS, STEADY_SECONDS * -left))
            wake.watch(watch.directories() if watch is not None else ())
            wake.wait(
                PATIENCE_SECONDS - LOOK_SECONDS
                if watch is not None and wake.is_watching
                else LOOK_SECONDS
            )
        wake.close()
        if watch is not None:
            watch.close()

    def _fail(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """Disconnect all pages, so that they connect again. The first one starts another thread."""
        with self._lock:
            self._thread = None
        loop.call_soon_threadsafe(self._disconnect)

    def _disconnect(self) -> None:
        for queue in self._queues:
            queue.put_nowait(None)

    def _has_pages(self) -> bool:
        with self._lock:
            if not self._queues:
                self._thread = None
            return bool(self._queues)

    def _opened(self) -> Watch | None:
        return Client(self._home).watch() if Store.is_at(self._home) else None

    def _publish(self, change: Change) -> None:
        for queue in self._queues:
            queue.put_nowait(change)


def _parts(changes: list[Change], look: Callable[[], Visible | None]) -> list[bytes]:
    visible = look()
    every = {id for change in changes for id in change.experiments}
    experiments = sorted(id for id in every if visible is None or id in visible)
    if not experiments:
        return []
    trials: dict[int, set[int]] = {}
    for change in changes:
        for id, of in change.trials.items():
            if id not in experiments:
                continue
            trials.setdefault(id, set()).update(of)
    parts = [event("experiments", {"ids": experiments if len(experiments) <= MOST_IDS else None})]
    for id, ids in trials.items():
        parts.append(
            event(
                "trials", {"experiment": id, "ids": sorted(ids) if len(ids) <= MOST_IDS else None}
            )
        )
    return parts


def event(name: str, data: Any) -> bytes:
    """Return one event in the format of server-sent events."""
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


# From <sys/inotify.h>: modified, moved there, created, deleted.
_WHAT = 0x2 | 0x80 | 0x100 | 0x200
_BYTES = 1 << 16


class Wake:
    """Waits for changes in directories. It is for one thread, which closes it.

    What another host writes to a shared directory is not noticed.
    """

    def __init__(self) -> None:
        self._watched: dict[Path, int] = {}
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def is_watching(self) -> bool:
        """Whether changes are noticed."""
        return bool(self._watched)

    def watch(self, directories: Iterable[Path]) -> None:
        """Watch these directories and no others. Those that do not exist are skipped."""
        if self._fd < 0:
            return
        wanted = set(directories)
        for gone in self._watched.keys() - wanted:
            self._libc.inotify_rm_watch(self._fd, self._watched.pop(gone))
        for each in wanted - self._watched.keys():
            if (number := self._libc.inotify_add_watch(self._fd, os.fsencode(each), _WHAT)) >= 0:
                self._watched[each] = number

    def wait(self, seconds: float) -> bool:
        """Wait for a change, `seconds` at most, and return whether there was one."""
        if self._fd < 0 or not self._watched:
            time.sleep(seconds)
            return False
        written = bool(select.select([self._fd], [], [], seconds)[0])
        with suppress(BlockingIOError):
            while written and len(os.read(self._fd, _BYTES)) > _BYTES // 2:
                continue
        return written

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
