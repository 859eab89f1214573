"""Who sits between two machines: it sees noise, and whatever it changes ends the connection."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.hosts import joined, why_no_network

pytestmark = pytest.mark.process

SCRIPT = """
import json, pickle, socket, struct, sys, threading, time
from det_core import DistributedContext
from det_node.wire import ConnectionLost, Server, connect
from det_node.wire._connection import CHALLENGE, MAGIC
from det_node.wire._tls import TlsContext

here, key, got = sys.argv[1], bytes(range(32)), []

def echo(link):
    while True:
        got.append(link.recv().decode())
        link.send(got[-1].encode())

server = Server(key, echo, here)

class Between:
    '''Passes on what two say, as `change` makes it; with `ends` it ends the encryption, and begins it again.'''

    def __init__(self, change=lambda to_server, data: [data], ends=False, to=None):
        self.seen, self.change, self.to = [], change, to or server.address
        self.listener = socket.create_server((here, 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self.serve, args=(ends,), daemon=True).start()

    def serve(self, ends):
        client, _ = self.listener.accept()
        behind = socket.create_connection(self.to)
        if ends:
            client.sendall(behind.recv(CHALLENGE, socket.MSG_WAITALL))
            client, behind = TlsContext(listens=True).over(client), TlsContext(listens=False).over(behind)
            client.do_handshake(), behind.do_handshake()
        for source, sink, to_server in ((client, behind, True), (behind, client, False)):
            threading.Thread(target=self.pump, args=(source, sink, to_server), daemon=True).start()

    def pump(self, source, sink, to_server):
        try:
            while data := source.recv(1 << 16):
                self.seen.append(data)
                for each in self.change(to_server, data):
                    sink.sendall(each)
        finally:
            for each in (source, sink):
                each.shutdown(socket.SHUT_RDWR)

def say(word):
    print(json.dumps(word), flush=True)

def talk(address, *words):
    with connect(address, key) as link:
        for word in words:
            link.send(word.encode())
            say(link.recv(timeout=10).decode())

def fails(address, *words):
    try:
        talk(address, *words)
    except (ConnectionLost, TimeoutError) as error:
        say(type(error).__name__ + " " + str(error))
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], list[Any]]]:
    """Run a script on a machine that has an address of its own; return what it says."""
    if reason := why_no_network():
        pytest.skip(reason)
    with joined(1) as network:
        [name] = network.names

        def started(script: str) -> list[Any]:
            done = subprocess.run(
                ["ip", "netns", "exec", name, sys.executable, "-c", SCRIPT + textwrap.dedent(script), name],
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        yield started


def test_who_listens_in_sees_noise(run) -> None:
    said = run("""
        between = Between()
        talk(between.address, "attack at dawn")
        say(b"attack" in b"".join(between.seen))
        say(got)
    """)
    assert said == ["attack at dawn", False, ["attack at dawn"]]


def test_traffic_forwarded_over_loopback_is_encrypted_too(run) -> None:
    said = run("""
        here = "127.0.0.1"
        server = Server(key, echo, here, sealed=True)
        between = Between()
        talk(between.address, "attack at dawn")
        say(b"attack" in b"".join(between.seen))
        say(got)
    """)
    assert said == ["attack at dawn", False, ["attack at dawn"]]


@pytest.mark.parametrize(
    "change",
    [
        "[data[:-1] + bytes([data[-1] ^ 1])]",  # altered
        "[data, data]",  # said again
        "[data[:-9]]",  # cut short
        "[struct.pack('!BHH', 23, 0x303, 40) + bytes(40), data]",  # made up
    ],
)
def test_nothing_is_heard_of_what_was_tampered_with(run, change: str) -> None:
    said = run(f"""
        armed = threading.Event()
        between = Between(lambda to_server, data: {change} if to_server and armed.is_set() else [data])
        with connect(between.address, key) as link:
            link.send(b"first")
            say(link.recv(timeout=10).decode())
            armed.set()
            link.send(b"second")
            time.sleep(0.2)
            armed.clear()
            try:
                while True:
                    link.send(b"third")
                    link.recv(timeout=1)
            except (ConnectionLost, TimeoutError) as error:
                say("lost")
        say([word for word in got if word == "third"])
    """)
    assert said == ["first", "lost", []]


def test_who_strips_the_encryption_is_spoken_to_no_more(run) -> None:
    said = run("""
        between = Between(lambda to_server, data: [data.replace(MAGIC + b"\\x01", MAGIC + b"\\x00")])
        fails(between.address, "a secret")
        say(got)
    """)
    assert said[0].startswith("KeyRefused ")
    assert (
        "does not encrypt, and is not on this machine; somebody in between may have seen to that"
        in said[0]
    )
    assert said[1:] == [[]]


def test_man_in_the_middle_that_ends_the_encryption_is_refused(run) -> None:
    """The proofs of the key pass unchanged; the certificate is another."""
    said = run("""
        between = Between(ends=True)
        fails(between.address, "a secret")
        say(got)
        say(len(between.seen) > 0)
    """)
    assert "refused the key" in said[0]
    assert said[1:] == [[], True]


def test_messages_between_ranks_are_encrypted_and_authenticated(run, tmp_path: Path) -> None:
    """An object that is none of plain values is pickled, and unpickling runs code.

    It has to be of a rank.
    """
    mark = tmp_path / "run by a rank"
    said = run(f"""
        from det_node.backends._star import _HEAD
        from det_node.backends._words import encode_value

        class Made:
            def __reduce__(self):
                return open, ({str(mark)!r}, "w")

        bomb, armed = b"".join(encode_value(Made())), threading.Event()

        def change(to_server, data):
            if to_server or not armed.is_set():
                return [data]
            return [struct.pack("!Q", _HEAD.size + len(bomb)) + data[8 : 8 + _HEAD.size] + bomb]

        def rank(number, port):
            return DistributedContext(
                rank=number, size=2, local_rank=0, local_size=1, cross_rank=number, cross_size=2, chief_ip=here, pub_port=port,
                key=key, start_timeout=20, timeout=5,
            )

        def chief():
            with rank(0, port) as ranks:
                ranks.broadcast("attack at dawn")
                armed.wait()
                ranks.broadcast("attack at noon")
                done.wait()

        with socket.create_server((here, 0)) as free:
            port = free.getsockname()[1]
        between, done = Between(change, to=(here, port)), threading.Event()
        behind = threading.Thread(target=chief)
        behind.start()
        while socket.socket().connect_ex((here, port)):
            time.sleep(0.05)
        with rank(1, between.address[1]) as ranks:
            say(ranks.broadcast(None))
            say(b"attack" in b"".join(between.seen))
            armed.set()
            try:
                say(ranks.broadcast(None))
            except Exception as error:
                say(type(error).__name__)
            done.set()
        behind.join()
    """)
    assert said == ["attack at dawn", False, "RankLost"]
    assert not mark.exists()


def test_frames_of_every_size_arrive_both_ways_from_many_threads(run) -> None:
    said = run("""
        with connect(server.address, key) as link:
            words = ["x" * size for size in (0, 1, 16_383, 16_384, 16_385, 65_536, 65_537, 3_000_000)] * 3
            threads = [threading.Thread(target=link.send, args=(word.encode(),)) for word in words]
            for thread in threads:
                thread.start()
            echoed = [link.recv(timeout=20).decode() for _ in words]
            for thread in threads:
                thread.join()
            say(sorted(echoed) == sorted(words) == sorted(got))
            say(link.waiting)
    """)
    assert said == [True, False]


def test_strangers_delay_nobody_and_cost_no_thread(run) -> None:
    said = run("""
        before, strangers = threading.active_count(), []
        for n in range(40):
            strangers.append(socket.create_connection(server.address))
            strangers[-1].sendall([b"", b"GET / HTTP/1.1", bytes(3000)][n % 3])
        talk(server.address, "still there")
        say(threading.active_count() - before <= 1)
    """)
    assert said == ["still there", True]
