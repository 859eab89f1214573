"""Authenticated connections between det's processes, which carry frames of bytes.

Both sides prove that they hold the same key (HMAC-SHA256 over a fresh nonce of each), so that a stranger on the port can
neither speak nor be believed. Until it has, a peer is read for one hello of fixed size, has a deadline for the whole of it,
costs a socket and no thread, and makes way for others when many wait.

A connection that does not stay on loopback is under TLS 1.3, whose certificate the proofs cover: who has not the key can neither
read nor change nor repeat a frame. The key of a run is of no use for another run. docs/decisions/0017-the-wire.md says why so.
"""

from __future__ import annotations

from ._client import connect
from ._connection import (
    LOOK_SECONDS,
    SILENCE_SECONDS,
    Address,
    Connection,
    ConnectionLost,
    KeyRefused,
    new_key,
    run_key,
)
from ._server import Server

__all__ = [
    "LOOK_SECONDS",
    "SILENCE_SECONDS",
    "Address",
    "Connection",
    "ConnectionLost",
    "KeyRefused",
    "Server",
    "connect",
    "new_key",
    "run_key",
]
