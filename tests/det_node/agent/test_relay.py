"""Where workers find their agent: a fork is given its place there, and may take its time."""

from __future__ import annotations

import queue
import time
from contextlib import closing

import pytest

from det_core.train.host import Outcome
from det_node import wire
from det_node.agent import WorkerMessage, _relay
from det_node.agent._relay import Relay
from det_node.protocol import (
    Envelope,
    Finished,
    Progressed,
    Reported,
    decode_welcome,
    encode,
    hello,
    welcome,
)

pytestmark = pytest.mark.process


def test_slow_fork_keeps_its_connection_and_others_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that connects by itself has to send its first message soon."""
    monkeypatch.setattr(_relay, "_HELLO_SECONDS", 0.1)
    heard: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
    with closing(Relay(on_event=heard.put)) as relay:
        key = wire.run_key(relay.key, 5)
        with (
            wire.Connection(relay.connect_fork(5)) as given,
            wire.connect(relay.address, key, run=5) as came,
        ):
            time.sleep(0.4)
            for each in (given, came):
                assert (
                    decode_welcome(each.recv(timeout=5)) == welcome()
                )  # it is there before a word is said
            given.send(encode(hello(5, 0)))
            given.send(encode(Envelope(1, Progressed(0.5))))
            assert heard.get(timeout=5).envelope == Envelope(1, Progressed(0.5))
            assert relay.has_connected(5)
            with pytest.raises(wire.ConnectionLost):
                came.recv(timeout=5)


def test_unreadable_message_fails_its_run_and_keeps_connection() -> None:
    heard: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
    with (
        closing(Relay(on_event=heard.put)) as relay,
        wire.Connection(relay.connect_fork(5)) as given,
    ):
        given.recv(timeout=5)
        given.send(encode(hello(5, 0)))
        given.send(encode(Envelope(1, Reported("training", 1.5, {}))))  # type: ignore[arg-type]
        given.send(encode(Envelope(2, Progressed(0.5))))
        refused, after = heard.get(timeout=5).envelope, heard.get(timeout=5).envelope
    assert isinstance(refused.message, Finished)
    assert (refused.number, refused.message.outcome, after) == (
        1,
        Outcome.MISTAKE,
        Envelope(2, Progressed(0.5)),
    )
    assert "Expected `int`, got `float` - at `$.message.batches`" in refused.message.message


def test_a_fork_says_only_what_its_own_run_says() -> None:
    heard: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
    with (
        closing(Relay(on_event=heard.put)) as relay,
        wire.Connection(relay.connect_fork(5)) as given,
    ):
        given.recv(timeout=5)
        given.send(encode(hello(6, 0)))
        with pytest.raises(wire.ConnectionLost):
            given.recv(timeout=5)
    assert heard.empty()
