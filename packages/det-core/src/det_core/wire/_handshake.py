"""What two processes say to prove the same key to one another.

The server sends a challenge, the client answers with a challenge of its own and its proof, the server with its proof, or
with zeros where it refuses the client's.
"""

from __future__ import annotations

import hmac
import secrets

HANDSHAKE_SECONDS = 10.0

Address = tuple[str, int]

MAGIC = b"det-wi\x00\x01"  # the last byte is the protocol's version
NONCE = PROOF = 32
CHALLENGE = len(MAGIC) + NONCE
HELLO = len(MAGIC) + NONCE + PROOF
REFUSAL = bytes(PROOF)


def new_key() -> bytes:
    """Return a random key; give it to other processes as hex."""
    return secrets.token_bytes(32)


def check_key(key: bytes) -> None:
    if len(key) < 16:
        raise ValueError(f"the key has {len(key)} bytes; give at least 16 random ones, such as wire.new_key()")


def prove(key: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the proof of one side; the sides' differ, so that none can be sent back as the other."""
    return hmac.digest(key, MAGIC + side + server_nonce + client_nonce, "sha256")


def shown(address: tuple[object, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
