"""Authenticated connections between det's processes, which carry frames of bytes.

Both sides prove that they hold the same key, with an HMAC-SHA256 over a fresh nonce of each side. A
stranger on the port can neither send messages nor pretend to be a peer. Before its proof, a peer
may send one hello of fixed size within a deadline. It costs a socket and no thread, and the oldest
such peer is dropped when many wait.

A connection that does not stay on loopback uses TLS 1.3. The proofs cover its certificate, so
nobody without the key can read, change or repeat a frame. The key of a run is useless for another
run. A process that a command such as ssh has started needs no proof: its standard input and output
are the connection (`stdio`, `through`). docs/decisions/0017-the-wire.md gives the reasons.
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
from ._stdio import NotReached, stdio, through

__all__ = [
    "LOOK_SECONDS",
    "SILENCE_SECONDS",
    "Address",
    "Connection",
    "ConnectionLost",
    "KeyRefused",
    "NotReached",
    "Server",
    "connect",
    "new_key",
    "run_key",
    "stdio",
    "through",
]
