"""A connection through standard input and output of a command that reaches a host, such as ssh."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from det_core.support.threads import start_thread

from ._connection import Connection, ConnectionLost

# A shell may print something before it starts the command. Everything before this is skipped.
MAGIC = b"\x00det-stdio\x00\x01"
MAX_NOISE = 1 << 16
_CHUNK = 1 << 16
_FLUSH_SECONDS = 5.0


class NotReached(ConnectionLost):
    """The command ended, or printed too much, before a process of det answered.

    `noise` is what it printed.
    """

    def __init__(self, why: str, noise: bytes | bytearray) -> None:
        super().__init__(why)
        self.noise = noise.decode(errors="replace").strip()


def through(sock: socket.socket) -> Connection:
    """Return the connection to a process that calls `stdio`.

    `sock` is one end of a pair. The other end is the standard input and output of the command that
    starts the process. Raises NotReached.
    """
    noise = bytearray()
    # By single bytes, as the first frame may follow at once.
    while not noise.endswith(MAGIC):
        if len(noise) > MAX_NOISE:
            raise NotReached("it did not start det", noise)
        byte = b""
        # A command that ends without reading its input resets the connection.
        with contextlib.suppress(ConnectionResetError):
            byte = sock.recv(1)
        if not byte:
            raise NotReached("it ended", noise)
        noise += byte
    return Connection(sock)


@contextlib.contextmanager
def stdio() -> Iterator[Connection]:
    """Yield the connection over this process's standard input and output.

    What this process prints goes to its standard error from then on. On leaving, all that was sent
    is written, unless nobody reads it.
    """
    ours, theirs = socket.socketpair()
    output = os.dup(1)
    os.dup2(2, 1)
    _write(output, MAGIC)

    def read() -> None:
        try:
            with contextlib.suppress(OSError):
                while data := os.read(0, _CHUNK):
                    theirs.sendall(data)
        finally:
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_WR)

    def write() -> None:
        try:
            # An error means that nobody reads any more.
            with contextlib.suppress(OSError):
                while data := theirs.recv(_CHUNK):
                    _write(output, data)
        finally:
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            os.close(output)

    start_thread(read, name="det-stdin")
    writer = start_thread(write, name="det-stdout")
    try:
        with Connection(ours) as connection:
            yield connection
    finally:
        writer.join(_FLUSH_SECONDS)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
