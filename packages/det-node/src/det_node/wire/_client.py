"""The client side of a connection."""

from __future__ import annotations

import hmac
import secrets
import socket
import time

from det_core.ranks.network import is_loopback

from ._connection import (
    CHALLENGE,
    CLEAR,
    HANDSHAKE_SECONDS,
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
    KeyRefused,
    check_key,
    prove,
    shown,
)


def connect(
    address: Address,
    key: bytes,
    timeout: float = HANDSHAKE_SECONDS,
    *,
    run: int = 0,
    max_frame: int = MAX_FRAME,
) -> Connection:
    """Connect to a server and prove the key to one another, within `timeout` seconds.

    With `run`, `key` is the key of that run (`run_key`). Raises

    - ConnectionLost, when nobody listens or the server hangs up,
    - KeyRefused, when the server holds another key, does not encrypt on another machine, or is not
      a process of det,
    - TimeoutError, when the server is silent.
    """
    check_key(key)
    deadline, where = time.monotonic() + timeout, shown(address)
    try:
        sock = _reach(address, timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sealed, nonce = _challenged(sock, deadline, where)
            fingerprint = b""
            if sealed:
                from ._tls import TlsContext

                sock = veiled = TlsContext(listens=False).over(sock)
                veiled.settimeout(_left(deadline))
                veiled.do_handshake()
                fingerprint = veiled.fingerprint
            _introduce(sock, key, run, fingerprint, nonce, deadline, where)
            return Connection(sock, max_frame, run)
        except BaseException:
            sock.close()
            raise
    except ConnectionLost:
        raise
    except TimeoutError as error:
        raise TimeoutError(f"{where} did not answer within {timeout:g} s") from error
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {where}: {error.strerror or error}") from error


def _reach(address: Address, timeout: float) -> socket.socket:
    """Return a socket that is connected to an address.

    Numeric addresses skip the resolver, which would copy a hundred pages of memory in a fork.
    """
    try:
        socket.inet_pton(socket.AF_INET, address[0])
    except OSError:
        return socket.create_connection(address, timeout)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(address)
        return sock
    except BaseException:
        sock.close()
        raise


def _challenged(sock: socket.socket, deadline: float, where: str) -> tuple[bool, bytes]:
    """Return whether the server uses TLS, and its nonce.

    Raises KeyRefused for a server on another machine that does not use TLS.
    """
    peer = sock.getpeername()
    # A port of the ephemeral range may be connected to itself.
    if sock.getsockname() == peer:
        raise ConnectionLost(f"cannot connect to {where}: nobody listens there")
    challenge = _read(sock, CHALLENGE, deadline, where)
    how = challenge[len(MAGIC) : -NONCE]
    if not challenge.startswith(MAGIC) or how not in (CLEAR, SEALED):
        raise KeyRefused(f"{where} is not a process of this version of det; check the address")
    if how == CLEAR and not is_loopback(peer[0]):
        raise KeyRefused(
            f"{where} does not encrypt, and is not on this machine; somebody in between may have"
            " seen to that"
        )
    return how == SEALED, challenge[-NONCE:]


def _introduce(
    sock: socket.socket,
    key: bytes,
    run: int,
    fingerprint: bytes,
    theirs: bytes,
    deadline: float,
    where: str,
) -> None:
    """Prove the key to a server, and check the server's proof."""
    ours = secrets.token_bytes(NONCE)
    sock.sendall(MAGIC + RUN.pack(run) + ours + prove(key, b"client", fingerprint, theirs, ours))
    reply = _read(sock, PROOF, deadline, where)
    if reply == REFUSAL:
        raise KeyRefused(
            f"{where} refused the key; give the one that the process there was started with"
        )
    if not hmac.compare_digest(reply, prove(key, b"server", fingerprint, theirs, ours)):
        raise KeyRefused(f"{where} does not hold the key; check the address")


def _read(sock: socket.socket, size: int, deadline: float, where: str) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(_left(deadline))
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionLost(f"{where} hung up before the handshake was over")
        data += more
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
