"""Authenticated, framed connections between the processes of det, over TCP.

Both sides prove that they know the key (HMAC-SHA256 over fresh challenges) before anything else is read. The frames that
follow are not encrypted: use loopback, or a network that you trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

MAGIC = b"det1"
NONCE = 32
HANDSHAKE_SECONDS = 10.0
MAX_PENDING = 128
MAX_FRAME = 2**31 - 1
_HEADER = struct.Struct("!I")


class ConnectionLost(ConnectionError):
    """The other side is gone, or proved to be a stranger."""


class Connection:
    """Frames of bytes in both directions; `send` may be called from any thread, `recv` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        """Send one frame. Raises ConnectionLost when the other side is gone."""
        if len(data) > MAX_FRAME:
            raise ValueError(f"a frame of {len(data)} bytes is larger than {MAX_FRAME}")
        try:
            with self._sending:
                self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise ConnectionLost("the other side is gone") from error

    def recv(self, timeout: float | None = None) -> bytes:
        """Return the next frame. Raises ConnectionLost at the end, TimeoutError after `timeout` seconds of silence."""
        self._socket.settimeout(timeout)
        try:
            (size,) = _HEADER.unpack(_exactly(self._socket, _HEADER.size))
            if size > MAX_FRAME:
                raise ConnectionLost(f"the other side announced a frame of {size} bytes")
            return _exactly(self._socket, size)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost("the other side is gone") from error

    def close(self) -> None:
        """End the connection; a thread that waits in `recv` is woken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Server:
    """Listens, and hands each peer that knows the key to `on_connect`, in a thread of its own."""

    def __init__(
        self, key: bytes, on_connect: Callable[[Connection], None], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._key, self._on_connect = key, on_connect
        self._pending = threading.BoundedSemaphore(MAX_PENDING)
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server((host, port), backlog=MAX_PENDING)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="det-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=5)
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if not self._pending.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="det-connection", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        try:
            try:
                _tune(sock)
                _prove(sock, self._key, server=True)
            finally:
                self._pending.release()
            with self._lock:
                self._connections.add(connection)
            if not self._closed:
                self._on_connect(connection)
        except (OSError, ConnectionLost):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def connect(address: tuple[str, int], key: bytes, timeout: float = HANDSHAKE_SECONDS) -> Connection:
    """Connect and prove the key. Raises ConnectionLost when refused, or when the other side does not know the key."""
    try:
        sock = socket.create_connection(address, timeout=timeout)
    except OSError as error:
        raise ConnectionLost(f"nobody answers at {address[0]}:{address[1]}: {error}") from error
    try:
        _tune(sock)
        _prove(sock, key, server=False)
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{address[0]}:{address[1]} refused the connection: {error}") from error
    return Connection(sock)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _prove(sock: socket.socket, key: bytes, *, server: bool) -> None:
    """Exchange challenges and proofs, of fixed sizes, within the time for a handshake."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    mine = secrets.token_bytes(NONCE)
    sock.settimeout(HANDSHAKE_SECONDS)
    sock.sendall(MAGIC + mine)
    hello = _exactly(sock, len(MAGIC) + NONCE, deadline)
    if hello[: len(MAGIC)] != MAGIC:
        raise ConnectionLost("it does not speak det's protocol")
    theirs = hello[len(MAGIC) :]
    roles = (b"server", b"client") if server else (b"client", b"server")
    sock.sendall(_proof(key, roles[0], theirs, mine))
    proof = _exactly(sock, hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _proof(key, roles[1], mine, theirs)):
        raise ConnectionLost("it does not know the key")
    sock.settimeout(None)


def _proof(key: bytes, role: bytes, challenge: bytes, own: bytes) -> bytes:
    return hmac.digest(key, role + challenge + own, "sha256")


def _exactly(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionLost("the other side is gone")
        parts += part
    return bytes(parts)
