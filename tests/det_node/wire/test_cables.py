"""A cable that is cut: packets vanish, and no system says so.

Two hosts are two network namespaces.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.clusters.hosts import Network, joined, why_no_network

from det_node.wire import SILENCE_SECONDS, Server, connect

pytestmark = pytest.mark.process

KEY = bytes(range(32))
SILENCE = 6.0  # in place of SILENCE_SECONDS, for the sake of those who wait for the test

SPEAKER = f"""
import sys, time
from det_node.wire import _connection
_connection.SILENCE_SECONDS, _connection.LOOK_SECONDS = {SILENCE}, 1.0
from det_node.wire import ConnectionLost, Server, connect
key, role, address = bytes(range(32)), sys.argv[1], sys.argv[2]
if role == "listener":
    Server(key, lambda link: [link.send(b"x") or time.sleep(60) for _ in range(9)], address, 7007)
    print("up", flush=True)
    time.sleep(60)
link = connect((address, 7007), key)
print("up", flush=True)
try:
    while role == "sender":
        link.send(b"a word")
        time.sleep(0.1)
    while True:
        link.recv()
except ConnectionLost as error:
    print(error, flush=True)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := why_no_network():
        pytest.skip(reason)
    with joined(2) as found:
        yield found


def start(host: str, role: str, address: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, "-c", SPEAKER, role, address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_a_peer_whose_cable_is_cut_is_given_up(network, role):
    """Whether words are on their way to it or none are."""
    here, there = network.names
    listener = start(there, "listener", there)
    speaker = start(here, role, there)
    try:
        network.cut(there)
        began = time.monotonic()
        output, _ = speaker.communicate(timeout=60)
        took = time.monotonic() - began
    finally:
        network.mend(there)
        for process in (listener, speaker):
            process.kill()
            process.wait()
    assert f"the connection to {there}:7007 is gone" in output
    assert SILENCE - 1 < took < SILENCE + 6


def test_a_cable_that_is_cut_for_a_moment_loses_nothing(network):
    here, there = network.names
    listener = start(there, "listener", there)
    speaker = start(here, "sender", there)
    try:
        network.cut(there)
        time.sleep(SILENCE / 3)
        network.mend(there)
        with pytest.raises(subprocess.TimeoutExpired):
            speaker.communicate(timeout=SILENCE + 3)
    finally:
        for process in (listener, speaker):
            process.kill()
            process.wait()


def test_the_silence_that_is_borne_is_half_a_minute():
    assert SILENCE_SECONDS == 30


def test_a_peer_that_does_not_read_for_long_is_not_given_up(monkeypatch):
    """As a rank that computes, while another sends it a model.

    The system's own time-out would end this.
    """
    monkeypatch.setattr("det_node.wire._connection.SILENCE_SECONDS", 1.0)
    monkeypatch.setattr("det_node.wire._connection.LOOK_SECONDS", 0.2)
    read, got = threading.Event(), []

    def slow(link) -> None:
        read.wait(30)
        got.append(len(link.recv()))
        link.send(b"thanks")

    with Server(KEY, slow) as server, connect(server.address, KEY) as link:
        threading.Timer(4.0, read.set).start()
        link.send(bytes(1 << 25))
        assert link.recv(timeout=20) == b"thanks"
    assert got == [1 << 25]
