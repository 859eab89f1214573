from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from det_node import wire
from det_node.agent import CodeTar, Order, Outbox, RunAck
from det_node.agent._frames import decode_orders

pytestmark = pytest.mark.process

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
        outbox.send(RunAck(number))
        time.sleep(0.01)
    assert listener.next(20) == [RunAck(number) for number in range(20)]
    assert watched.senders == [threading.current_thread().name] * 20
    outbox.close(5)


def test_most_of_many_messages_are_sent_by_a_thread_in_order(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    began = time.monotonic()
    for number in range(5000):
        outbox.send(RunAck(number))
    took = time.monotonic() - began
    assert listener.next(5000) == [RunAck(number) for number in range(5000)]
    at_once = watched.senders.count(threading.current_thread().name)
    assert 1 <= at_once <= 17 + 400 * took
    assert "det-outbox" in watched.senders
    outbox.close(5)


def test_outbox_sends_at_once_again_after_a_burst_in_order(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    sent = 0
    while "det-outbox" not in watched.senders:
        outbox.send(RunAck(sent))
        sent += 1
    assert listener.next(sent) == [RunAck(number) for number in range(sent)]
    time.sleep(0.2)
    watched.senders.clear()
    outbox.send(RunAck(sent))
    assert listener.next(1) == [RunAck(sent)]
    assert watched.senders == [threading.current_thread().name], (
        "once all that waited is said, it is at once again"
    )
    outbox.close(5)


def test_grouped_messages_are_one_frame_at_the_outermost_end(listener: Listener) -> None:
    outbox, watched = outbox_to(listener)
    outbox.send(RunAck(0))
    with outbox.together():
        with outbox.together():
            outbox.send(RunAck(1))
        for number in (2, 3):
            outbox.send(RunAck(number))
        assert watched.senders == [threading.current_thread().name]
    with outbox.together():
        pass
    outbox.send(RunAck(4))
    numbers = [[0], [1, 2, 3], [4]]
    assert [listener.frames.get(timeout=30) for _ in numbers] == [
        [RunAck(n) for n in each] for each in numbers
    ]
    outbox.close(5)


def test_grouped_messages_are_sent_although_the_block_fails(listener: Listener) -> None:
    outbox, _ = outbox_to(listener)

    def fails() -> None:
        with outbox.together():
            outbox.send(RunAck(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    outbox.send(RunAck(2))
    assert listener.next(2) == [RunAck(1), RunAck(2)]
    outbox.close(5)


def test_closing_sends_the_rest_and_a_lost_connection_drops_it(listener: Listener) -> None:
    outbox, _ = outbox_to(listener)
    for number in range(3000):
        outbox.send(RunAck(number))
    outbox.close(30)
    assert listener.next(3000) == [RunAck(number) for number in range(3000)]
    outbox.send(RunAck(1))
    with pytest.raises(queue.Empty):
        listener.frames.get(timeout=0.2)


def test_writer_waits_for_a_slow_peer_but_not_for_a_lost_one() -> None:
    """What waits in memory is bounded, whatever is written."""
    ours, theirs = socket.socketpair()
    outbox, told = Outbox(wire.Connection(ours)), list[int]()

    def write() -> None:
        for number in range(1000):
            outbox.send(CodeTar(str(number), bytes(1 << 16)))
            outbox.wait_for_room()
            told.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    deadline = time.monotonic() + 10
    while len(told) < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert 60 <= len(told) < 100
    with wire.Connection(theirs) as peer:
        for _ in range(10):
            peer.recv(10)
        before = len(told)
        while len(told) < before + 5 and time.monotonic() < deadline:
            peer.recv(10)
        assert before <= len(told) < 900
    writer.join(10)
    assert not writer.is_alive()
    outbox.close()
