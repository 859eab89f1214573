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
from typing import TYPE_CHECKING, Self

from ..errors import DetError
from ..machine import address_to_bind, is_loopback
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
    from ._tls import Sealed, Veil

MAX_PENDING = 128


class Server:
    """Listens, and hands each peer that proves the key to `on_connect`, in a daemon thread of its own.

    When `on_connect` ends, its connection is closed, unless it was detached. `host` is the address at which peers come, by
    default loopback alone; `port` 0 takes a free one; `address` has both. Whoever holds the key of a run (`run_key`) is
    believed to be of that run. Who does not come over loopback is spoken to under TLS, and with `sealed` everybody is, as
    somebody else may carry what they say. Peers that have not proved the key within `handshake_timeout` seconds are dropped,
    and so is the oldest of them where `max_pending` are waiting.
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
    ) -> None:
        check_key(key)
        self._key, self._on_connect, self._max_frame = key, on_connect, max_frame
        self._max_pending, self._patience = max_pending, handshake_timeout
        self._closing = False
        self._serving: dict[threading.Thread, Connection] = {}
        self._pending: dict[socket.socket, _Pending] = {}
        bound = address_to_bind(host)
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        try:
            self._listener = socket.create_server((bound, port), family=family, backlog=1024)
        except OSError as error:
            why = (error.strerror or str(error)).partition(" (while")[0]  # what follows is the address again
            raise DetError(
                f"cannot listen on {shown((bound, port))} ({why}); give an address of this host and a free port, or set "
                "DET_BIND_ADDRESS to such an address"
            ) from error
        self._listener.setblocking(False)
        there, port = self._listener.getsockname()[:2]
        self.address: Address = (there if bound == host else host, port)
        self._sealed = sealed
        self._veil = None if is_loopback(there) and not sealed else _veil()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="det-wire-accept", daemon=True)
        self._thread.start()

    def give(self, run: int) -> socket.socket:
        """Return one end of a connection for a process of a run, which proves nothing, as nobody else gets it.

        Where the server is closed, so is the connection.
        """
        ours, theirs = socket.socketpair()
        if self._closing:
            ours.close()
        else:
            self._hand_over(Connection(ours, self._max_frame, run))
        return theirs

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
        nonce, deadline = secrets.token_bytes(NONCE), time.monotonic() + self._patience
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        veil = None if is_loopback(sock.getsockname()[0]) and not self._sealed else self._veil
        try:
            if not _put(sock, MAGIC + (SEALED if veil else CLEAR) + nonce):
                raise ConnectionAbortedError
            veiled = veil.over(sock) if veil else None
        except OSError:
            sock.close()
            return
        pending = _Pending(veiled or sock, nonce, deadline, veiled, veil.fingerprint if veil else b"")
        self._pending[pending.sock] = pending
        self._selector.register(pending.sock, selectors.EVENT_READ, pending)

    def _hear(self, pending: _Pending) -> None:
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
        said = bytes(pending.hello[len(MAGIC) :])
        (run,), nonce, proof = RUN.unpack_from(said), said[RUN.size : -PROOF], said[-PROOF:]
        key, channel = run_key(self._key, run), pending.fingerprint
        if not hmac.compare_digest(proof, prove(key, b"client", channel, pending.nonce, nonce)):
            _put(pending.sock, REFUSAL)
            self._drop(pending)
            return
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock]
        if _put(pending.sock, prove(key, b"server", channel, pending.nonce, nonce)):
            self._hand_over(Connection(pending.sock, self._max_frame, run))
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
    shaking: Sealed | None  # until TLS's own handshake is over
    fingerprint: bytes
    hello: bytearray = field(default_factory=bytearray)


def _veil() -> Veil:
    from ._tls import Veil  # most processes speak over loopback only, and OpenSSL takes its time

    return Veil(listens=True)


def _put(sock: socket.socket, data: bytes) -> bool:
    """Send a few bytes without waiting; they always fit into the buffer of a connection that is new."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
