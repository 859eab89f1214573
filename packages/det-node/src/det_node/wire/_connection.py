"""Frames of bytes between two processes, and the proofs that come before them.

The server sends a challenge. The client sends its own challenge and its proof. The server replies
with its proof, or with zeros where it refuses the client's proof. Where the peers are on different
machines, all but the first challenge is under TLS, and the proofs cover the certificate.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Self

HANDSHAKE_SECONDS = 10.0
MAX_FRAME = 1 << 30
SILENCE_SECONDS = 30.0
"""After how long a machine that acknowledges nothing counts as gone.

A switch or a route needs less to recover, and the kernel would take a quarter of an hour.
"""
LOOK_SECONDS = SILENCE_SECONDS / 6

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview

# The last byte is the protocol's version.
MAGIC = b"det-wi\x00\x02"
CLEAR, SEALED = b"\0", b"\1"
NONCE = PROOF = 32
CHALLENGE = len(MAGIC) + len(SEALED) + NONCE
RUN = struct.Struct("!Q")
HELLO = len(MAGIC) + RUN.size + NONCE + PROOF
REFUSAL = bytes(PROOF)
_HEAD = struct.Struct("!Q")
# Frames of at most this size are copied into one buffer, which is cheaper than a list of buffers.
_SMALL = 1 << 16
# Less than is free in the smallest buffer of a writable socket, which is a third of it.
_AT_ONCE = 1 << 12
# Below IOV_MAX.
_MAX_PARTS = 512
# Of tcp_info: unanswered retransmits and probes, and milliseconds since the last ack.
_INFO = struct.Struct("=2xBB52xI")
# A healthy peer answers nearly every probe.
_PROBES = 4


class ConnectionLost(ConnectionError):
    """The peer is gone, cannot be reached, or broke the protocol.

    The connection cannot be used again.
    """


class KeyRefused(ConnectionLost):
    """The peer does not hold the same key, or is not a process of det."""


def new_key() -> bytes:
    """Return a random key. Pass it to other processes as hex."""
    return secrets.token_bytes(32)


def check_key(key: bytes) -> None:
    if len(key) < 16:
        raise ValueError(
            f"the key has {len(key)} bytes; give at least 16 random ones, such as wire.new_key()"
        )


def run_key(key: bytes, run: int) -> bytes:
    """Return the key of a run, which proves membership of that run only. Run 0 has `key` itself."""
    return hmac.digest(key, b"the key of a run" + RUN.pack(run), "sha256") if run else key


def prove(
    key: bytes, side: bytes, fingerprint: bytes, server_nonce: bytes, client_nonce: bytes
) -> bytes:
    """Return the proof of one side.

    The proofs of both sides differ, so neither can be sent back as the other. A proof is invalid on
    a connection with another certificate, or with none.
    """
    return hmac.digest(
        key, MAGIC + side + fingerprint.ljust(PROOF, b"\0") + server_nonce + client_nonce, "sha256"
    )


def shown(address: tuple[object, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


class Connection:
    """Frames of bytes to and from one authenticated peer, whose address is `peer` (`host:port`).

    `run` is the run whose key was proved, or 0 for the server's own key. Any number of threads may
    send, and one at a time receives. `close` wakes them all. Set `detached` in `on_connect` to keep
    the connection longer than the server does. Then the caller has to close it.
    """

    def __init__(self, sock: socket.socket, max_frame: int = MAX_FRAME, run: int = 0) -> None:
        self._sock = sock
        # A TLS socket has no sendmsg.
        self._put: Callable[[list[memoryview]], int] = getattr(sock, "put", sock.sendmsg)
        self._max = max_frame
        self.run = run
        self.peer = _peer(sock)
        self._lost = ""
        self._looked, self._doubted = time.monotonic(), math.inf
        self.detached = False
        self._sending, self._receiving = threading.RLock(), threading.RLock()
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._readable.register(sock, select.POLLIN)
        self._head = bytearray(_HEAD.size)
        self._body: bytearray | None = None
        self._filled = 0
        sock.setblocking(False)
        if not self.given:
            _tune(sock)

    @property
    def given(self) -> bool:
        """Whether the peer was given its end (`Server.give`), and so did not connect."""
        return self._sock.family == socket.AF_UNIX

    @property
    def waiting(self) -> bool:
        """Whether a frame, a part of one, or the end can be received without waiting."""
        return bool(self._lost or self._body is not None or self._readable.poll(0))

    def fileno(self) -> int:
        """Return the descriptor to wait on.

        It is readable when a frame, or a part of one, is there.
        """
        return self._sock.fileno()

    def send(self, *parts: Buffer, timeout: float | None = None) -> None:
        """Send the parts as one frame.

        Raises ValueError for a frame larger than the maximum, and ConnectionLost. A frame that is
        not sent after `timeout` seconds raises TimeoutError and ends the connection, as half a
        frame cannot be taken back.
        """
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)
        if size > self._max:
            raise ValueError(
                f"a frame of {size} bytes is larger than the maximum of {self._max}; send it in"
                " pieces"
            )
        head = memoryview(_HEAD.pack(size))
        frame = [memoryview(b"".join((head, *views)))] if size <= _SMALL else [head, *views]
        deadline = _deadline(timeout)
        with self._sending:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self.heed()
            try:
                self._write(frame, deadline)
            except BaseException as error:
                self._shut(f"sending failed: {type(error).__name__}")
                raise

    def offer(self, frame: bytes) -> bool:
        """Send a small frame if that does not block, and return whether it is sent.

        Returns False for a large frame, or while another thread sends. Raises ConnectionLost.
        """
        if len(frame) > _AT_ONCE or not self._sending.acquire(blocking=False):
            return False
        try:
            if not self._writable.poll(0):
                return False
            self.send(frame)
            return True
        finally:
            self._sending.release()

    def recv(self, timeout: float | None = None) -> bytes:
        """Return the next frame.

        Raises ConnectionLost, or TimeoutError after `timeout` seconds. After a TimeoutError it may
        be called again.
        """
        return bytes(self.recv_buffer(timeout))

    def recv_buffer(self, timeout: float | None = None) -> bytearray:
        """Return the next frame in a buffer that the caller owns.

        It saves the copy that `recv` makes.
        """
        deadline = _deadline(timeout)
        with self._receiving:
            if self._body is None:
                self._fill(self._head, deadline)
                (size,) = _HEAD.unpack(self._head)
                if size > self._max:
                    raise self._fail(
                        f"it announced a frame of {size} bytes, more than the maximum of"
                        f" {self._max}"
                    )
                self._body, self._filled = bytearray(size), 0
            self._fill(self._body, deadline)
            body, self._body, self._filled = self._body, None, 0
            return body

    def heed(self) -> None:
        """Raise ConnectionLost if the peer's machine has not acknowledged data for SILENCE_SECONDS.

        `send` and `recv` call this while they wait. A peer that computes and does not read still
        acknowledges probes, which the kernel sends ever more rarely. TCP_USER_TIMEOUT would treat
        such a peer as lost.
        """
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            # The socket is closed. The next call that uses it raises.
            return
        retransmits, probes, quiet = _INFO.unpack(info)
        now = self._looked = time.monotonic()
        self._doubted = min(self._doubted, now) if retransmits or probes >= _PROBES else math.inf
        if min(now - self._doubted, quiet / 1000) >= SILENCE_SECONDS:
            raise self._fail(f"its machine has not answered for {SILENCE_SECONDS:g} s")

    def close(self) -> None:
        """Close the connection. May be called twice and from any thread."""
        self._shut("it was closed here")
        with self._sending, self._receiving:
            self._sock.close()

    def close_inherited(self) -> None:
        """Close a forked process's descriptor. The connection stays open in its parent.

        No lock is taken, as a thread that was not forked may hold it.
        """
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, views: list[memoryview], deadline: float) -> None:
        while views:
            sent = self._some(lambda: self._put(views[:_MAX_PARTS]), self._writable, deadline)
            while views and sent >= views[0].nbytes:
                sent -= views.pop(0).nbytes
            if sent:
                views[0] = views[0][sent:]

    def _fill(self, buffer: bytearray, deadline: float) -> None:
        view = memoryview(buffer)
        while self._filled < len(buffer):
            count = self._some(
                lambda: self._sock.recv_into(view[self._filled :]), self._readable, deadline
            )
            if not count:
                raise self._fail("it closed the connection")
            self._filled += count

    def _some(self, move: Callable[[], int], poll: select.poll, deadline: float) -> int:
        """Return how many bytes `move` moved, as soon as it can."""
        while not self._lost:
            try:
                return move()
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{self.peer} did not answer in time") from None
                if not poll.poll(math.ceil(min(left, LOOK_SECONDS) * 1000)):
                    self.heed()
            except OSError as error:
                raise self._fail(error.strerror or str(error)) from error
        raise self._fail(self._lost)

    def _fail(self, why: str) -> ConnectionLost:
        self._shut(why)
        return ConnectionLost(f"the connection to {self.peer} is gone: {self._lost}")

    def _shut(self, why: str) -> None:
        """Wake all threads that wait.

        The descriptor stays open until they have left, so that no other file gets its number.
        """
        self._lost = self._lost or why
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Keepalive probes also check a peer that was sent nothing it could acknowledge.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, math.ceil(SILENCE_SECONDS / 3))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, math.ceil(SILENCE_SECONDS / 6))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _peer(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "a process of this machine"
    try:
        return shown(sock.getpeername())
    except OSError:
        return "a peer that has left"
