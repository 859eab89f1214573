"""What is said over a connection waits for its turn, as a machine that cannot be reached must not hold anything up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice

from .. import wire
from ._frames import Order, Told, encode_frame

_AT_ONCE_A_SECOND, _AT_ONCE = 400.0, 16.0  # frames: more than a search on a few slots has to say


class Outbox:
    """Sends what it is told, in order: at once where that takes no waiting, else in a thread of its own, what waits as one frame.

    Much is said by that thread, or `together`: a frame for each would cost more than it says. A connection that is lost drops it.
    """

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting, self._free, self._told = 0, _AT_ONCE, 0.0  # how many may be sent at once, and when that was so
        self._left: queue.SimpleQueue[list[Told | Order] | None] = queue.SimpleQueue()
        self._held: list[Told | Order] | None = None
        self._sender = threading.Thread(target=self._send, daemon=True, name="det-outbox")
        self._sender.start()

    def tell(self, said: Told | Order) -> None:
        """Send it, or have it sent; it never waits, and never fails."""
        with self._lock:
            if self._held is None:
                self._say([said])
            else:
                self._held.append(said)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Say all that is told inside as one frame, at the end; inside another one, at the end of that."""
        with self._lock:
            outer, self._held = self._held, [] if self._held is None else self._held
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, outer
                if outer is None and held:
                    self._say(held)

    def _say(self, said: list[Told | Order]) -> None:
        with suppress(wire.ConnectionLost, OSError):
            before, self._told = self._told, time.monotonic()
            self._free = min(self._free + (self._told - before) * _AT_ONCE_A_SECOND, _AT_ONCE)
            if self._waiting or self._free < 1 or not self._connection.offer(encode_frame(said)):
                self._waiting += 1
                self._left.put(said)
            else:
                self._free -= 1

    def close(self, seconds: float = 0.0) -> None:
        """Say what is left, for so long, and end the connection."""
        self._left.put(None)
        self._sender.join(seconds)
        self._connection.close()

    def _send(self) -> None:
        left = iter(self._left.get, None)
        with suppress(wire.ConnectionLost, OSError):
            for first in left:
                others = list(islice(left, min(self._left.qsize(), 255)))
                self._connection.send(encode_frame([*first, *chain.from_iterable(others)]))
                with self._lock:
                    self._waiting -= 1 + len(others)
