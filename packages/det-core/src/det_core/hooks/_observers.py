"""Calls the observers of other distributions, each in its own thread, with a time limit."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

from ..support.threads import start_thread

OBSERVER_SECONDS = 30.0
"""How many seconds an observer may take for one call before it is switched off."""


_WAKE_SECONDS = 0.5
"""How often a waiting thread wakes up for signals.

Python's signal handlers run in the main thread. A signal does not wake it where it arrives just
before the wait begins, or in another thread.
"""


class ObserverHangs(Exception):
    """An observer does not return. The message says where it is."""


class ObserverThread:
    """Calls the hooks of one plugin, one after another, in one thread.

    A call that takes too long, or that nobody waits for any more, is given up. It continues in its
    daemon thread. It is not interrupted by an exception raised in that thread: such an exception
    stays pending while the thread waits in the system. That slows the whole process, and hangs it
    under a profiler or a debugger on Python 3.11.
    """

    def __init__(self, plugin: str) -> None:
        self._calls: queue.SimpleQueue[tuple[int, Callable[[], object]] | None] = (
            queue.SimpleQueue()
        )
        self._results: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._number = 0
        self._calling = False
        self._thread: threading.Thread = start_thread(self._serve, name=f"det-observer-{plugin}")

    def call(self, function: Callable[[], object], seconds: float) -> None:
        """Call a function in the thread. Raises its exception, or ObserverHangs after `seconds`."""
        self._number += 1
        self._calling = True
        deadline = time.monotonic() + seconds
        try:
            self._calls.put((self._number, function))
            while True:
                left = deadline - time.monotonic()
                try:
                    number, error = self._results.get(timeout=min(max(0.0, left), _WAKE_SECONDS))
                except queue.Empty:
                    if left > 0:
                        continue
                    number, error = (
                        self._number,
                        self._hangs(f"does not return within {seconds:g} s"),
                    )
                if number == self._number:
                    break
        finally:
            self._calling = False
        if error is not None:
            raise error

    def give_up(self) -> None:
        """Stop waiting for the current call. For any thread, and for signal handlers."""
        if self._calling:
            self._results.put((self._number, self._hangs("did not return when the run was to end")))

    def _hangs(self, how: str) -> ObserverHangs:
        frame = sys._current_frames().get(self._thread.ident or 0)
        where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
        # The thread ends if the call returns later.
        self._calls.put(None)
        return ObserverHangs(f"it {how}{where}")

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            number, function = call
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:
                error = raised
            self._results.put((number, error))
