"""The side that connects."""

from __future__ import annotations

import hmac
import secrets
import socket
import time

from ._connection import (
    CHALLENGE,
    HANDSHAKE_SECONDS,
    MAGIC,
    MAX_FRAME,
    NONCE,
    PROOF,
    REFUSAL,
    Address,
    Connection,
    ConnectionLost,
    KeyRefused,
    check_key,
    prove,
    shown,
)


def connect(
    address: Address, key: bytes, timeout: float = HANDSHAKE_SECONDS, *, max_frame: int = MAX_FRAME
) -> Connection:
    """Connect to a server and prove the key to one another, within `timeout` seconds.

    Raises ConnectionLost when nobody listens or the server hangs up, KeyRefused when it holds another key or is no process
    of det, TimeoutError when it is silent.
    """
    check_key(key)
    deadline, where = time.monotonic() + timeout, shown(address)
    try:
        sock = socket.create_connection(address, timeout)
        try:
            _introduce(sock, key, deadline, where)
            return Connection(sock, max_frame)
        except BaseException:
            sock.close()
            raise
    except ConnectionLost:
        raise
    except TimeoutError as error:
        raise TimeoutError(f"{where} did not answer within {timeout:g} s") from error
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {where}: {error.strerror or error}") from error


def _introduce(sock: socket.socket, key: bytes, deadline: float, where: str) -> None:
    """Prove the key to a server, and have it prove the key."""
    if sock.getsockname() == sock.getpeername():  # a port of the ephemeral range may be connected to itself
        raise ConnectionLost(f"cannot connect to {where}: nobody listens there")
    challenge = _read(sock, CHALLENGE, deadline, where)
    if not challenge.startswith(MAGIC):
        raise KeyRefused(f"{where} is not a process of this version of det; check the address")
    theirs, ours = challenge[len(MAGIC) :], secrets.token_bytes(NONCE)
    sock.sendall(MAGIC + ours + prove(key, b"client", theirs, ours))
    answer = _read(sock, PROOF, deadline, where)
    if answer == REFUSAL:
        raise KeyRefused(f"{where} refused the key; give the one that the process there was started with")
    if not hmac.compare_digest(answer, prove(key, b"server", theirs, ours)):
        raise KeyRefused(f"{where} does not hold the key; check the address")


def _read(sock: socket.socket, size: int, deadline: float, where: str) -> bytes:
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionLost(f"{where} hung up before the handshake was over")
        data += more
    return data
