"""A TCP relay for an agent on a node that may have no network to its driver.

A process that can call methods of the `TcpRelay` on that node carries the bytes of the agent's
connection. The module imports nothing of det: it may be sent to the node by value, where det-core
is in another Python than the caller's.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

CHUNK = 1 << 16
"""The most bytes in one call."""
_WAITS_SECONDS, _LOOKS_SECONDS, _REACHES_SECONDS = 10.0, 1.0, 2.0
_WORDS = 4096


class Opened(NamedTuple):
    """The stream that was opened, or how the agent has ended.

    `stream` is 0 where the agent has not connected yet. `status` is the agent's exit status where
    it has ended, and `words` is the end of its output. A `direct` stream reaches the driver by
    itself: `read` only waits for its end.
    """

    stream: int = 0
    status: int | None = None
    words: str = ""
    direct: bool = False


class TcpRelay:
    """Starts an agent with the command `argv`, and carries its connection for the newest caller.

    `start` is the agent's description (JSON). Its driver's address is replaced by the address of
    this object. An empty first word of `argv` means this Python.
    """

    def __init__(
        self, argv: tuple[str, ...], start: bytes, node: int, environ: Mapping[str, str]
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socket: socket.socket | None = None
        self._pumping: threading.Thread | None = None
        self.stream = 0
        """How many streams there have been."""
        self._opening, self.known = threading.Lock(), threading.Event()
        fields = json.loads(start) | {"driver": self._listener.getsockname()}
        self._note = os.path.join(fields["directory"], f"{fields['name']}-{node}.json")
        self._argv = (argv[0] or sys.executable, *argv[1:-1])
        # It is there as long as this object is.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self.agent = subprocess.Popen(
            [*self._argv, argv[-1], str(node)],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        assert self.agent.stdin
        with suppress(OSError), self.agent.stdin as stdin:
            stdin.write(json.dumps(fields).encode() + b"\n")

    def open(self, driver: tuple[str, int]) -> Opened:
        """Return a new stream to the agent, in place of the one before.

        What the earlier caller has not read is lost, and the agent sends it again. The bytes go
        straight to the driver where this node can reach it.
        """
        with self._opening:
            self.close(self.stream)
            self._listener.settimeout(0)
            with suppress(BlockingIOError):
                # Close connections that no call of `open` accepted.
                while True:
                    self._listener.accept()[0].close()
            self._listener.settimeout(_LOOKS_SECONDS)
            deadline = time.monotonic() + _WAITS_SECONDS
            while self.agent.poll() is None and time.monotonic() < deadline:
                with suppress(TimeoutError):
                    self._socket = self._listener.accept()[0]
                    self._socket.settimeout(None)
                    self.stream += 1
                    self._pumping = _pumping(self._socket, driver)
                    return Opened(self.stream, direct=self._pumping is not None)
        if (status := self.agent.poll()) is None:
            return Opened()
        self.known.set()
        self._output.seek(max(self._output.seek(0, os.SEEK_END) - _WORDS, 0))
        return Opened(0, status, self._output.read().decode(errors="replace"))

    def read(self, stream: int) -> bytes | None:
        """Return the agent's next bytes.

        They are empty when the stream has ended, and None when there are none yet.
        """
        sock = self._of(stream)
        if sock is not None and self._pumping is not None:
            self._pumping.join(_WAITS_SECONDS)
            return None if self._pumping.is_alive() else b""
        with suppress(OSError, ValueError):
            if sock is not None:
                return (
                    sock.recv(CHUNK) if select.select([sock], [], [], _WAITS_SECONDS)[0] else None
                )
        return b""

    def write(self, stream: int, data: bytes) -> bool:
        """Send bytes to the agent when it has room for them. Return whether the stream is open."""
        with suppress(OSError):
            if (sock := self._of(stream)) is not None:
                sock.sendall(data)
                return True
        return False

    def close(self, stream: int) -> None:
        """Close a stream. Does nothing when it has ended."""
        if (sock := self._of(stream)) is not None:
            self._socket = None
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def end(self, at_once: bool) -> None:
        """Make the agent's runs save and end, or kill them."""
        subprocess.run(
            [*self._argv, "--kill" if at_once else "--end", self._note],
            timeout=_WAITS_SECONDS,
            check=False,
        )

    def _of(self, stream: int) -> socket.socket | None:
        return self._socket if stream == self.stream else None


def _pumping(agent: socket.socket, driver: tuple[str, int]) -> threading.Thread | None:
    """Return the thread that carries bytes from a driver to its agent, or None without a route.

    The thread ends when either side closes its connection.
    """
    try:
        there = socket.create_connection(driver, _REACHES_SECONDS)
    except OSError:
        return None
    there.settimeout(None)
    for sock in (agent, there):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    thread = threading.Thread(target=_pump, args=(there, agent), daemon=True)
    thread.start()
    threading.Thread(target=_pump, args=(agent, there), daemon=True).start()
    return thread


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    for sock in (source, target):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
