"""Wakes drivers for a free slot or a command, so that they need not look for these all the time.

A driver listens at a socket whose address is an abstract name of Linux: it is no file, and ends
with the process. Everybody on the machine may send to it, but a wake-up only makes its driver look.
If one is lost, the driver finds the slot or the command when it looks the next time.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from det_core.support.threads import start_thread

SLOTS, COMMAND = b"\1", b"\2"
"""The content of a datagram: slots may be free, or a command was sent."""
_PAUSE_SECONDS = 0.02
"""The shortest time between two wake-ups of a driver."""


class Wakeups:
    """Calls `woken` for each wake-up of an experiment's driver, in a thread, until it is closed.

    `woken` gets what woke the driver: `SLOTS` or `COMMAND`. As anybody may send, it may get any
    other byte or none. `work` is False where the system has no such sockets, or another process
    uses the address.
    """

    def __init__(self, home: Path, experiment_id: int, woken: Callable[[bytes], object]) -> None:
        self.work = False
        self._woken, self._closing = woken, threading.Event()
        if sys.platform != "linux":
            return
        # Without it, the driver looks by itself.
        with suppress(OSError), ExitStack() as undo:
            self._socket = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._socket.bind(_address(home, experiment_id))
            self._thread = start_thread(self._listen, name="det-wakeups", failed=self._failed)
            undo.pop_all()
            self.work = True

    def _listen(self) -> None:
        while not self._closing.is_set():
            what = self._socket.recv(1)
            if not self._closing.is_set():
                self._woken(what)
                self._closing.wait(_PAUSE_SECONDS)

    def _failed(self, error: BaseException) -> None:
        self.work = False

    def close(self) -> None:
        """Stop listening."""
        if self.work:
            self.work = False
            self._closing.set()
            # To close a socket does not end a call of `recv`.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
            self._thread.join()
            self._socket.close()


def wake(home: Path, experiments: Iterable[int], what: bytes = SLOTS) -> None:
    """Wake the drivers of these experiments, if they listen."""
    if sys.platform != "linux":
        return
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
        for experiment in experiments:
            # Nobody listens, or wake-ups are left that were not read yet.
            with suppress(OSError):
                sender.sendto(what, _address(home, experiment))


def _address(home: Path, experiment_id: int) -> str:
    # A home may have several paths.
    found = home.stat()
    return f"\0det-slots-{found.st_dev}-{found.st_ino}-{experiment_id}"
