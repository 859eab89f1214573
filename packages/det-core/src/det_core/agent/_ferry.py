"""An agent on a machine that may have no network to its driver: who can call its `Ferry` there carries the bytes of its connection.

It imports nothing of det: it may travel to that machine by value, where another Python has det-core than the one it is in.
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
"""The most bytes in a call."""
_WAITS_SECONDS, _LOOKS_SECONDS, _REACHES_SECONDS = 10.0, 1.0, 2.0
_WORDS = 4096


class Opened(NamedTuple):
    """The number of a stream, or none where the agent has not connected yet; or how the agent has ended, and what it said last.

    A `direct` one needs nobody to carry its bytes: `read` only waits for its end.
    """

    stream: int = 0
    status: int | None = None
    words: str = ""
    direct: bool = False


class Ferry:
    """Runs an agent, of the command `argv`, and carries the bytes of its connection for the driver that has asked last.

    `start` is what the agent is told, but for the driver's address, which is this object's. An empty first word of `argv` means
    this Python.
    """

    def __init__(self, argv: tuple[str, ...], start: bytes, node: int, environ: Mapping[str, str]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socket: socket.socket | None = None
        self._pumping: threading.Thread | None = None
        self.stream = 0
        """How many streams there have been."""
        self._opening, self.known = threading.Lock(), threading.Event()
        told = json.loads(start) | {"driver": self._listener.getsockname()}
        self._note = os.path.join(told["directory"], f"{told['name']}-{node}.json")
        self._argv = (argv[0] or sys.executable, *argv[1:-1])
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is there as long as this object is
        self.agent = subprocess.Popen(
            [*self._argv, argv[-1], str(node)],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        assert self.agent.stdin
        with suppress(OSError), self.agent.stdin as stdin:
            stdin.write(json.dumps(told).encode() + b"\n")

    def open(self, driver: tuple[str, int]) -> Opened:
        """Have the agent connect again, as who was there before is gone: what that one has not read is lost, and told again.

        Where the driver can be reached from here, its bytes go the straight way.
        """
        with self._opening:
            self.close(self.stream)
            self._listener.settimeout(0)
            with suppress(BlockingIOError):
                while True:  # those that nobody has answered
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
        self._said.seek(max(self._said.seek(0, os.SEEK_END) - _WORDS, 0))
        return Opened(0, status, self._said.read().decode(errors="replace"))

    def read(self, stream: int) -> bytes | None:
        """Return what the agent says next; nothing when the stream has ended, None when there is nothing yet."""
        sock = self._of(stream)
        if sock is not None and self._pumping is not None:
            self._pumping.join(_WAITS_SECONDS)
            return None if self._pumping.is_alive() else b""
        with suppress(OSError, ValueError):
            if sock is not None:
                return sock.recv(CHUNK) if select.select([sock], [], [], _WAITS_SECONDS)[0] else None
        return b""

    def write(self, stream: int, data: bytes) -> bool:
        """Say something to the agent, when it has room for it; return whether the stream goes on."""
        with suppress(OSError):
            if (sock := self._of(stream)) is not None:
                sock.sendall(data)
                return True
        return False

    def close(self, stream: int) -> None:
        """End a stream; harmless when it has ended."""
        if (sock := self._of(stream)) is not None:
            self._socket = None
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def end(self, at_once: bool) -> None:
        """Have the agent's runs save and end, or kill them."""
        subprocess.run([*self._argv, "--kill" if at_once else "--end", self._note], timeout=_WAITS_SECONDS, check=False)

    def _of(self, stream: int) -> socket.socket | None:
        return self._socket if stream == self.stream else None


def _pumping(agent: socket.socket, driver: tuple[str, int]) -> threading.Thread | None:
    """Return the thread that carries bytes from a driver to its agent while both are there; None where there is no way."""
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
