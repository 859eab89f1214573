from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from det_core import wire
from det_core.agent import Order, Outbox, Settled
from det_core.agent._frames import decode_orders

KEY = bytes(range(32))


class Listener:
    """The other end: the orders of each frame that came."""

    def __init__(self) -> None:
        self.frames = queue.SimpleQueue[list[Order]]()
        self.server = wire.Server(KEY, self._hear)

    def _hear(self, connection: wire.Connection) -> None:
        while True:
            self.frames.put(list(decode_orders(connection.recv())))

    def next(self, count: int) -> list[Order]:
        """Return so many orders, in the order in which they came."""
        came: list[Order] = []
        while len(came) < count:
            came += self.frames.get(timeout=30)
        return came


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.server.close()


class Watched:
    """A connection that notes which thread sends each frame."""

    def __init__(self, connection: wire.Connection) -> None:
        self._connection = connection
        self.senders: list[str] = []

    def send(self, frame: bytes) -> None:
        self._connection.send(frame)
        self.senders.append(threading.current_thread().name)

    def offer(self, frame: bytes) -> bool:
        sent = self._connection.offer(frame)
        if sent:
            self.senders.append(threading.current_thread().name)
        return sent

    def close(self) -> None:
        self._connection.close()


def outbox_to(listener: Listener) -> tuple[Outbox, Watched]:
    watched = Watched(wire.connect(listener.server.address, KEY, timeout=5))
    return Outbox(watched), watched  # type: ignore[arg-type]


def test_who_says_little_says_it_at_once(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    for number in range(20):
        outbox.tell(Settled(number))
        time.sleep(0.01)
    assert listener.next(20) == [Settled(number) for number in range(20)]
    assert watched.senders == [threading.current_thread().name] * 20
    outbox.close(5)


def test_who_says_much_has_nearly_all_of_it_said_by_another_thread_in_its_order(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    began = time.monotonic()
    for number in range(5000):
        outbox.tell(Settled(number))
    took = time.monotonic() - began
    assert listener.next(5000) == [Settled(number) for number in range(5000)]
    at_once = watched.senders.count(threading.current_thread().name)
    assert 1 <= at_once <= 17 + 400 * took
    assert "det-outbox" in watched.senders
    outbox.close(5)


def test_after_a_crowd_words_go_at_once_again_and_none_has_overtaken_another(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    sent = 0
    while "det-outbox" not in watched.senders:
        outbox.tell(Settled(sent))
        sent += 1
    assert listener.next(sent) == [Settled(number) for number in range(sent)]
    time.sleep(0.2)
    watched.senders.clear()
    outbox.tell(Settled(sent))
    assert listener.next(1) == [Settled(sent)]
    assert watched.senders == [threading.current_thread().name], "once all that waited is said, it is at once again"
    outbox.close(5)


def test_what_is_told_together_is_one_frame_at_the_end_and_an_inner_end_is_none(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    outbox.tell(Settled(0))
    with outbox.together():
        with outbox.together():
            outbox.tell(Settled(1))
        for number in (2, 3):
            outbox.tell(Settled(number))
        assert watched.senders == [threading.current_thread().name]
    with outbox.together():
        pass
    outbox.tell(Settled(4))
    numbers = [[0], [1, 2, 3], [4]]
    assert [listener.frames.get(timeout=30) for _ in numbers] == [[Settled(n) for n in each] for each in numbers]
    outbox.close(5)


def test_what_is_told_together_is_said_where_the_rest_of_it_fails_too(listener: Listener) -> None:
    outbox, _ = outbox_to(listener)

    def fails() -> None:
        with outbox.together():
            outbox.tell(Settled(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    outbox.tell(Settled(2))
    assert listener.next(2) == [Settled(1), Settled(2)]
    outbox.close(5)


def test_closing_says_what_is_left_and_a_lost_connection_drops_it(listener: Listener) -> None:
    outbox, _ = outbox_to(listener)
    for number in range(3000):
        outbox.tell(Settled(number))
    outbox.close(30)
    assert listener.next(3000) == [Settled(number) for number in range(3000)]
    outbox.tell(Settled(1))
    with pytest.raises(queue.Empty):
        listener.frames.get(timeout=0.2)
