"""Terminals of runs, over the connection between an agent and its driver.

The agent is the client of the terminal's server on its node, and the driver serves the same
terminal to a client on its own machine. In between, each side sends at most `WINDOW` bytes that the
other has not passed on, so that a slow client holds up the program and nothing else.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from det_core.support.threads import start_thread

from ..terminal import connect_terminal
from ._files import OwnFiles
from ._frames import OpenTerminal, TerminalData

WINDOW = 1 << 18
_CHUNK = 1 << 15
_TAKES_SECONDS = 5.0
"""How long a client may take nothing of the rest of the output."""
_POLL_SECONDS = 0.05


class TerminalLink:
    """Relays between a socket and the other side, to which `send` sends."""

    def __init__(
        self, run: int, connected: socket.socket, send: Callable[[TerminalData], object]
    ) -> None:
        self._run, self._socket, self._send = run, connected, send
        self._changed = threading.Condition()
        # Bytes to the other side, and those of them that it has passed on.
        self._sent = self._passed_on = 0
        self._waiting = 0
        self._ended = self._closed = False
        self._received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to relay."""
        start_thread(self._read, name="det-terminal-out")
        start_thread(self._write, name="det-terminal-in")

    def take(self, data: TerminalData) -> None:
        """Take what the other side has sent. Never blocks."""
        with self._changed:
            self._passed_on = max(self._passed_on, data.received)
            self._waiting += len(data.data)
            is_too_much = self._waiting > 2 * WINDOW
            self._changed.notify_all()
        if is_too_much:
            # The other side does not keep to the window.
            self.close()
            return
        if data.data:
            self._received.put(data.data)
        if data.closed:
            self._received.put(None)

    def close(self) -> None:
        """End the relay. The client, or the program's terminal, is then gone for the other one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._received.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Wait until all output has been passed on, unless nothing of it is for a while."""
        before, deadline = -1, 0.0
        with self._changed:
            while not (self._closed or (self._ended and self._passed_on >= self._sent)):
                if self._passed_on != before:
                    before, deadline = self._passed_on, time.monotonic() + _TAKES_SECONDS
                if not self._changed.wait(_POLL_SECONDS) and time.monotonic() > deadline:
                    return

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := self._socket.recv(_CHUNK):
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closed or self._sent - self._passed_on < WINDOW
                    )
                    self._sent += len(chunk)
                self._send(TerminalData(self._run, chunk))
        self._send(TerminalData(self._run, closed=True))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _write(self) -> None:
        received = 0
        with suppress(OSError):
            while (data := self._received.get()) is not None:
                self._socket.sendall(data)
                received += len(data)
                with self._changed:
                    self._waiting -= len(data)
                self._send(TerminalData(self._run, received=received))
        self.close()


class Terminals:
    """The terminals that runs of an agent serve on its node. `send` sends to its driver."""

    def __init__(self, send: Callable[[OpenTerminal | TerminalData], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._links: dict[int, TerminalLink] = {}
        self._announced: set[int] = set()

    def announce(self, runs: Iterable[int], files: OwnFiles) -> None:
        """Say of which runs a terminal is now served, once to each driver."""
        for run, place in files.terminals(runs):
            if run not in self._announced and run not in self._links and place.is_socket():
                self._announced.add(run)
                self._send(OpenTerminal(run))

    def handle(self, order: OpenTerminal | TerminalData, files: OwnFiles | None) -> None:
        """Connect with the terminal of a run, or take what was typed into it."""
        if isinstance(order, TerminalData):
            with self._lock:
                link = self._links.get(order.run)
            if link is not None:
                link.take(order)
            return
        places = files.terminals([order.run]) if files else []
        connected = connect_terminal(places[0][1]) if places else None
        if connected is None:
            self._send(TerminalData(order.run, closed=True))
            return
        with self._lock:
            link = self._links[order.run] = TerminalLink(order.run, connected, self._send)
        link.start()

    def finish(self, run: int) -> None:
        """Send the rest of the output of a run that has ended."""
        with self._lock:
            link = self._links.get(run)
        if link is not None:
            link.finish()

    def close(self) -> None:
        """Close all terminals, as the driver is gone. Their programs end."""
        with self._lock:
            links, self._links = self._links, {}
            self._announced.clear()
        for link in links.values():
            link.close()
