"""The side that listens."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from ._connection import (
    HANDSHAKE_SECONDS,
    HELLO,
    MAGIC,
    MAX_FRAME,
    NONCE,
    PROOF,
    REFUSAL,
    Address,
    Connection,
    ConnectionLost,
    check_key,
    prove,
)

MAX_PENDING = 128


class Server:
    """Listens, and hands each peer that proves the key to `on_connect`, in a daemon thread of its own.

    When `on_connect` ends, its connection is closed, unless it was detached. `host` is the address to listen on, by default
    loopback alone; `port` 0 takes a free one; `address` has both. Peers that have not proved the key within
    `handshake_timeout` seconds are dropped, and so is the oldest of them where `max_pending` are waiting.
    """

    def __init__(
        self,
        key: bytes,
        on_connect: Callable[[Connection], None],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_frame: int = MAX_FRAME,
        max_pending: int = MAX_PENDING,
        handshake_timeout: float = HANDSHAKE_SECONDS,
    ) -> None:
        check_key(key)
        self._key, self._on_connect, self._max_frame = key, on_connect, max_frame
        self._max_pending, self._patience = max_pending, handshake_timeout
        self._closing = False
        self._serving: dict[threading.Thread, Connection] = {}
        self._pending: dict[socket.socket, _Pending] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address: Address = self._listener.getsockname()[:2]
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="det-wire-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close every connection that was not detached; threads and sockets are gone afterwards."""
        self._closing = True
        self._wake.close()
        self._thread.join()
        serving = self._serving.copy()
        for connection in serving.values():
            if not connection.detached:
                connection.close()
        for thread in serving.keys() - {threading.current_thread()}:
            thread.join(timeout=5)  # a handler that is busy elsewhere is a daemon, and ends with the process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread that accepts; it never waits for a peer

    def _run(self) -> None:
        try:
            while not self._closing:
                for ready, _ in self._selector.select(self._expire()):
                    if ready.fileobj is self._listener:
                        self._accept()
                    elif isinstance(ready.data, _Pending):
                        self._hear(ready.data)
        finally:
            for pending in list(self._pending.values()):
                self._drop(pending)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors: take back those of strangers, or wait for one
            self._drop_oldest() if self._pending else time.sleep(0.05)
            return
        if len(self._pending) >= self._max_pending:
            self._drop_oldest()
        pending = _Pending(sock, secrets.token_bytes(NONCE), time.monotonic() + self._patience)
        self._pending[sock] = pending
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, pending)
        if not _put(sock, MAGIC + pending.nonce):
            self._drop(pending)

    def _hear(self, pending: _Pending) -> None:
        if pending.sock not in self._pending:
            return
        try:
            data = pending.sock.recv(HELLO - len(pending.hello))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        pending.hello += data
        if not data or pending.hello[: len(MAGIC)] != MAGIC[: len(pending.hello)]:
            self._drop(pending)
        elif len(pending.hello) == HELLO:
            self._judge(pending)

    def _judge(self, pending: _Pending) -> None:
        nonce, proof = bytes(pending.hello[len(MAGIC) : -PROOF]), bytes(pending.hello[-PROOF:])
        if not hmac.compare_digest(proof, prove(self._key, b"client", pending.nonce, nonce)):
            _put(pending.sock, REFUSAL)
            self._drop(pending)
            return
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock]
        if _put(pending.sock, prove(self._key, b"server", pending.nonce, nonce)):
            self._hand_over(Connection(pending.sock, self._max_frame))
        else:
            pending.sock.close()

    def _hand_over(self, connection: Connection) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="det-wire-serve", daemon=True)
        self._serving[thread] = connection
        try:
            thread.start()
        except RuntimeError:  # no more threads now: the peer finds its connection lost, and the server goes on
            del self._serving[thread]
            connection.close()

    def _expire(self) -> float | None:
        """Drop those whose time is over; return in how many seconds that of the next one is."""
        now = time.monotonic()
        for pending in list(self._pending.values()):
            if pending.deadline > now:
                return pending.deadline - now
            self._drop(pending)
        return None

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._pending.values())))

    def _drop(self, pending: _Pending) -> None:
        del self._pending[pending.sock]
        self._selector.unregister(pending.sock)
        pending.sock.close()

    # A thread for each authenticated peer

    def _serve(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(ConnectionLost, TimeoutError):
                self._on_connect(connection)
        finally:
            if not connection.detached:
                connection.close()
            del self._serving[threading.current_thread()]


@dataclass
class _Pending:
    """A peer that has not proved the key yet."""

    sock: socket.socket
    nonce: bytes
    deadline: float
    hello: bytearray = field(default_factory=bytearray)


def _put(sock: socket.socket, data: bytes) -> bool:
    """Send a few bytes without waiting; they always fit into the buffer of a connection that is new."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
