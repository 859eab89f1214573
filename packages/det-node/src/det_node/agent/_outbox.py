"""The queue of unsent messages, so that a peer that cannot be reached holds nothing up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice

from det_core.support.threads import start_thread

from .. import wire
from ._frames import AgentEvent, Order, encode_frame

# Frames: more than a search on a few slots sends.
_AT_ONCE_A_SECOND, _AT_ONCE = 400.0, 16.0
_MOST_WAITING = 64


class Outbox:
    """Sends messages in order, at once where that does not block, else in a thread.

    The thread sends all queued messages as one frame, and so does `together`, as a frame for each
    would cost more than its content. The queue is dropped when the connection is lost.
    """

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._room, self._over = threading.Condition(self._lock), False
        # How many frames are queued, how many may be sent at once, and when that was counted.
        self._waiting, self._free, self._counted_at = 0, _AT_ONCE, 0.0
        self._queue: queue.SimpleQueue[list[AgentEvent | Order] | None] = queue.SimpleQueue()
        self._held: list[AgentEvent | Order] | None = None
        self._sender = start_thread(
            self._send_queued, name="det-outbox", failed=lambda error: connection.close()
        )

    def send(self, message: AgentEvent | Order) -> None:
        """Send a message, or queue it. Never blocks, and never fails."""
        with self._lock:
            if self._held is None:
                self._send_now([message])
            else:
                self._held.append(message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send all messages of the context as one frame when it is left.

        A context inside another one sends at the end of the outer one.
        """
        with self._lock:
            outer, self._held = self._held, [] if self._held is None else self._held
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, outer
                if outer is None and held:
                    self._send_now(held)

    def wait_for_room(self) -> None:
        """Wait while many messages are queued, as the peer reads slowly."""
        with self._room:
            self._room.wait_for(lambda: self._waiting < _MOST_WAITING or self._over)

    def _send_now(self, messages: list[AgentEvent | Order]) -> None:
        with suppress(wire.ConnectionLost, OSError):
            before, self._counted_at = self._counted_at, time.monotonic()
            self._free = min(self._free + (self._counted_at - before) * _AT_ONCE_A_SECOND, _AT_ONCE)
            if (
                self._waiting
                or self._free < 1
                or not self._connection.offer(encode_frame(messages))
            ):
                self._waiting += 1
                self._queue.put(messages)
            else:
                self._free -= 1

    def close(self, seconds: float = 0.0) -> None:
        """Send what is queued, for at most so many seconds, and close the connection."""
        self._queue.put(None)
        self._sender.join(seconds)
        self._connection.close()

    def _send_queued(self) -> None:
        left = iter(self._queue.get, None)
        try:
            with suppress(wire.ConnectionLost, OSError):
                for first in left:
                    others = list(islice(left, min(self._queue.qsize(), 255)))
                    self._connection.send(encode_frame([*first, *chain.from_iterable(others)]))
                    with self._room:
                        self._waiting -= 1 + len(others)
                        self._room.notify_all()
        finally:
            with self._room:
                self._over = True
                self._room.notify_all()
