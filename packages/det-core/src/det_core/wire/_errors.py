"""How a connection fails."""

from __future__ import annotations


class ConnectionLost(ConnectionError):
    """The peer is gone, cannot be reached, or broke the protocol; the connection is of no more use."""


class KeyRefused(ConnectionLost):
    """The peer does not hold the same key, or is no process of det."""
