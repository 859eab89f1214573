"""Authenticated connections between det's processes, which carry frames of bytes.

Both sides prove that they hold the same key (HMAC-SHA256 over a fresh nonce of each), so that a stranger on the port can
neither speak nor be believed. Until it has, a peer is read for one hello of fixed size, has a deadline for the whole of it,
costs a socket and no thread, and makes way for others when many wait.

What this does not protect: frames are neither encrypted nor signed after the handshake. On loopback nobody else can touch
them; between hosts, whoever can alter packets on the way can read and change them, so use a network that you trust.
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
]
