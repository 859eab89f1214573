"""Where workers find their agent: a fork is given its place there, and may take its time."""

from __future__ import annotations

import queue
import time
from contextlib import closing

import pytest

from det_core import wire
from det_core.agent import Spoke, _relay
from det_core.agent._relay import Relay
from det_core.protocol import Progressed, Said, decode_welcome, encode, hello, welcome


def test_a_fork_that_is_long_in_coming_finds_its_place_and_whoever_comes_by_itself_has_to_speak_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_relay, "_HELLO_SECONDS", 0.1)
    heard: queue.SimpleQueue[Spoke] = queue.SimpleQueue()
    with closing(Relay(hears=heard.put)) as relay:
        key = wire.run_key(relay.key, 5)
        with wire.Connection(relay.door(5)) as given, wire.connect(relay.address, key, run=5) as came:
            time.sleep(0.4)
            for each in (given, came):
                assert decode_welcome(each.recv(timeout=5)) == welcome()  # it is there before a word is said
            given.send(encode(hello(5, 0)))
            given.send(encode(Said(1, Progressed(0.5))))
            assert heard.get(timeout=5).said == Said(1, Progressed(0.5))
            assert relay.came(5)
            with pytest.raises(wire.ConnectionLost):
                came.recv(timeout=5)


def test_a_fork_says_only_what_its_own_run_says() -> None:
    heard: queue.SimpleQueue[Spoke] = queue.SimpleQueue()
    with closing(Relay(hears=heard.put)) as relay, wire.Connection(relay.door(5)) as given:
        given.recv(timeout=5)
        given.send(encode(hello(6, 0)))
        with pytest.raises(wire.ConnectionLost):
            given.recv(timeout=5)
    assert heard.empty()
