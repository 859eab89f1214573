"""What is said over a connection waits for its turn, as a machine that cannot be reached must not hold anything up."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress

from .. import wire
from ._frames import Order, Told, encode_frame


class Outbox:
    """Sends what it is told, in order: at once where that takes no waiting, else in a thread of its own, what waits as one frame.

    A connection that is lost drops it.
    """

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting = 0
        self._left: queue.SimpleQueue[Told | Order | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, daemon=True, name="det-outbox")
        self._sender.start()

    def tell(self, said: Told | Order) -> None:
        """Send it, or have it sent; it never waits, and never fails."""
        with self._lock, suppress(wire.ConnectionLost, OSError):
            if self._waiting or not self._connection.offer(encode_frame([said])):
                self._waiting += 1
                self._left.put(said)

    def close(self, seconds: float = 0.0) -> None:
        """Say what is left, for so long, and end the connection."""
        self._left.put(None)
        self._sender.join(seconds)
        self._connection.close()

    def _send(self) -> None:
        with suppress(wire.ConnectionLost, OSError):
            while None not in (said := [self._left.get() for _ in range(min(max(self._left.qsize(), 1), 256))]):
                self._connection.send(encode_frame(said))
                with self._lock:
                    self._waiting -= len(said)
            self._connection.send(encode_frame(said[: said.index(None)]))
