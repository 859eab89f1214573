"""The server side of connections."""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from det_core.errors import DetError
from det_core.ranks.network import address_to_bind, is_loopback
from det_core.support.threads import Failed, start_thread

from ._connection import (
    CLEAR,
    HANDSHAKE_SECONDS,
    HELLO,
    MAGIC,
    MAX_FRAME,
    NONCE,
    PROOF,
    REFUSAL,
    RUN,
    SEALED,
    Address,
    Connection,
    ConnectionLost,
    check_key,
    prove,
    run_key,
    shown,
)

if TYPE_CHECKING:
    from ._tls import TlsContext, TlsSocket

MAX_PENDING = 128
_RETRY_SECONDS = 0.1


class Server:
    """Listens, and calls `on_connect` for each authenticated peer in a daemon thread.

    A connection is closed when `on_connect` returns, unless it was detached.

    - `host`: the address at which peers connect, by default loopback alone.
    - `port`: 0 takes a free one. `address` has the host and the port.
    - `key`: a peer with the key of a run (`run_key`) counts as a process of that run.
    - `sealed`: use TLS for peers on loopback, too, as another process may relay their bytes. Other
      peers always use TLS.
    - `handshake_timeout`: peers that have not proved the key within so many seconds are dropped.
    - `max_pending`: where so many peers have not proved the key yet, the oldest is dropped.
    - `failed`: called with exceptions of `on_connect` other than a lost connection or a timeout,
      and where no thread can be started for a peer within `handshake_timeout`.
    - `unserved`: called in that case before with the run of the peer and with the error. The
      connection is closed after that.
    """

    def __init__(
        self,
        key: bytes,
        on_connect: Callable[[Connection], None],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        sealed: bool = False,
        max_frame: int = MAX_FRAME,
        max_pending: int = MAX_PENDING,
        handshake_timeout: float = HANDSHAKE_SECONDS,
        failed: Failed | None = None,
        unserved: Callable[[int, OSError], object] | None = None,
    ) -> None:
        check_key(key)
        self._key, self._on_connect, self._max_frame = key, on_connect, max_frame
        self._max_pending, self._patience = max_pending, handshake_timeout
        self._failed, self._unserved = failed, unserved
        self._closing = False
        self._serving: dict[threading.Thread, Connection] = {}
        self._starting = threading.Lock()
        self._waiting: list[tuple[Connection, float]] = []
        self._pending: dict[socket.socket, _Pending] = {}
        bound = address_to_bind(host)
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        try:
            self._listener = socket.create_server((bound, port), family=family, backlog=1024)
        except OSError as error:
            # The message repeats the address in brackets.
            why = (error.strerror or str(error)).partition(" (while")[0]
            raise DetError(
                f"cannot listen on {shown((bound, port))} ({why}); give an address of this host and"
                " a free port, or set DET_BIND_ADDRESS to such an address"
            ) from error
        self._listener.setblocking(False)
        there, port = self._listener.getsockname()[:2]
        self.address: Address = (there if bound == host else host, port)
        self._sealed = sealed
        self._tls_context = None if is_loopback(there) and not sealed else _tls_context()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = start_thread(self._run, name="det-wire-accept", failed=failed)

    def give(self, run: int) -> socket.socket:
        """Return one end of a connection for a process of a run.

        The process proves no key, as no other one gets this end.

        The connection is closed where the server is. Raises OSError where no thread can be started.
        """
        ours, theirs = socket.socketpair()
        if self._closing:
            ours.close()
            return theirs
        connection = Connection(ours, self._max_frame, run)
        try:
            self._start_serving(connection)
        except OSError:
            theirs.close()
            connection.close()
            raise
        return theirs

    def close(self) -> None:
        """Stop listening, close connections that are not detached, and wait for the threads."""
        self._closing = True
        self._wake.close()
        self._thread.join()
        with self._starting:
            serving = self._serving.copy()
        for connection in serving.values():
            if not connection.detached:
                connection.close()
        for thread in serving.keys() - {threading.current_thread()}:
            # A handler that is still busy is a daemon thread, and ends with the process.
            thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread that accepts. It never waits for a peer.

    def _run(self) -> None:
        try:
            while not self._closing:
                for ready, _ in self._selector.select(self._expire()):
                    if ready.fileobj is self._listener:
                        self._accept()
                    elif isinstance(ready.data, _Pending):
                        self._receive_hello(ready.data)
        finally:
            for pending in list(self._pending.values()):
                self._drop(pending)
            for connection, _ in self._waiting:
                connection.close()
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # No descriptors are left: drop a peer that has not proved the key, or wait.
            self._drop_oldest() if self._pending else time.sleep(0.05)
            return
        if len(self._pending) >= self._max_pending:
            self._drop_oldest()
        nonce, deadline = secrets.token_bytes(NONCE), time.monotonic() + self._patience
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = None if is_loopback(sock.getsockname()[0]) and not self._sealed else self._tls_context
        try:
            if not _put(sock, MAGIC + (SEALED if tls else CLEAR) + nonce):
                raise ConnectionAbortedError
            tls_socket = tls.over(sock) if tls else None
        except OSError:
            sock.close()
            return
        pending = _Pending(
            tls_socket or sock, nonce, deadline, tls_socket, tls.fingerprint if tls else b""
        )
        self._pending[pending.sock] = pending
        self._selector.register(pending.sock, selectors.EVENT_READ, pending)

    def _receive_hello(self, pending: _Pending) -> None:
        if pending.sock not in self._pending:
            return
        try:
            if pending.shaking is not None:
                pending.shaking.do_handshake()
                pending.shaking = None
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
        hello = bytes(pending.hello[len(MAGIC) :])
        (run,), nonce, proof = RUN.unpack_from(hello), hello[RUN.size : -PROOF], hello[-PROOF:]
        key, channel = run_key(self._key, run), pending.fingerprint
        if not hmac.compare_digest(proof, prove(key, b"client", channel, pending.nonce, nonce)):
            _put(pending.sock, REFUSAL)
            self._drop(pending)
            return
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock]
        if _put(pending.sock, prove(key, b"server", channel, pending.nonce, nonce)):
            self._waiting.append((Connection(pending.sock, self._max_frame, run), pending.deadline))
        else:
            pending.sock.close()

    def _start_serving(self, connection: Connection) -> None:
        with self._starting:
            self._serving[
                start_thread(self._serve, connection, name="det-wire-serve", failed=self._failed)
            ] = connection

    def _start_waiting(self) -> None:
        """Start a thread for each peer that has proved the key.

        Where no thread can be started, the peer waits until its deadline.
        """
        waiting, self._waiting = self._waiting, []
        for connection, deadline in waiting:
            try:
                self._start_serving(connection)
            except OSError as error:
                if time.monotonic() < deadline:
                    self._waiting.append((connection, deadline))
                    continue
                if self._unserved is not None:
                    self._unserved(connection.run, error)
                connection.close()
                if self._failed is not None:
                    self._failed(error)

    def _expire(self) -> float | None:
        """Drop peers whose deadline is over. Return the seconds until the next deadline."""
        self._start_waiting()
        soonest = _RETRY_SECONDS if self._waiting else None
        now = time.monotonic()
        for pending in list(self._pending.values()):
            if pending.deadline > now:
                return min(pending.deadline - now, soonest or math.inf)
            self._drop(pending)
        return soonest

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
            # Wait until `_start_serving` has added the thread.
            with self._starting:
                self._serving.pop(threading.current_thread(), None)


@dataclass
class _Pending:
    """A peer that has not proved the key yet."""

    sock: socket.socket
    nonce: bytes
    deadline: float
    # None once the TLS handshake is over.
    shaking: TlsSocket | None
    fingerprint: bytes
    hello: bytearray = field(default_factory=bytearray)


def _tls_context() -> TlsContext:
    # Most processes use loopback only, and to import OpenSSL takes time.
    from ._tls import TlsContext

    return TlsContext(listens=True)


def _put(sock: socket.socket, data: bytes) -> bool:
    """Send a few bytes without waiting. They always fit into the buffer of a new connection."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
