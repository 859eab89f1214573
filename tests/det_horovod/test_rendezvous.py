"""The server at which Gloo's ranks meet: its protocol, and those who do not belong there."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from det_core import Ranks
from det_horovod import Rendezvous, address_variables, horovod_slots

pytestmark = pytest.mark.process

TWO = horovod_slots([Ranks(rank=n, size=2, local_rank=n, local_size=2) for n in range(2)])


@pytest.fixture
def rendezvous() -> Iterator[Rendezvous]:
    with Rendezvous("127.0.0.1", TWO) as server:
        yield server


def ask(
    server: Rendezvous, verb: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(verb, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def known(server: Rendezvous, key: str) -> str:
    """Return the path that Horovod makes for a key."""
    variables = address_variables("127.0.0.1", server.path())
    addr, port = (
        variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        variables["HOROVOD_GLOO_RENDEZVOUS_PORT"],
    )
    return f"{addr}:{port}/{key}".partition("/")[2].join(("/", ""))


def test_a_value_is_there_once_it_was_put(rendezvous):
    path = known(rendezvous, "global/1")
    assert ask(rendezvous, "GET", path) == (404, b"")
    assert ask(rendezvous, "PUT", path, b"\0there") == (200, b"")
    assert ask(rendezvous, "GET", path) == (200, b"\0there")


def test_scope_is_emptied_when_all_its_ranks_have_finished(rendezvous):
    path = known(rendezvous, "global/x")
    ask(rendezvous, "PUT", path, b"1")
    for rank, expected in ((0, 200), (0, 200), (1, 404)):  # one that says it twice is one
        ask(rendezvous, "DELETE", known(rendezvous, f"global/{rank}"))
        assert ask(rendezvous, "GET", path)[0] == expected


def test_keys_of_a_scope_made_by_ranks_are_deleted_one_by_one(rendezvous):
    for key in "ab":
        ask(rendezvous, "PUT", known(rendezvous, f"process_set/{key}"), b"1")
    ask(rendezvous, "DELETE", known(rendezvous, "process_set/a"))
    assert [ask(rendezvous, "GET", known(rendezvous, f"process_set/{key}"))[0] for key in "ab"] == [
        404,
        200,
    ]


@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/global/0", "/wrong-secret/:0/global/0", "//:0/global/0"])
def test_a_stranger_is_refused(rendezvous, verb, path):
    assert ask(rendezvous, verb, path, b"x" if verb == "PUT" else None)[0] == 403


def test_a_strangers_value_is_not_waited_for(rendezvous):
    with socket.create_connection(("127.0.0.1", rendezvous.port), timeout=5) as sock:
        sock.sendall(b"PUT /wrong/:0/global/0 HTTP/1.0\r\nContent-Length: 1000000000\r\n\r\n")
        assert b" 403 " in sock.recv(100)


@pytest.mark.parametrize("length", ["1048577", "-1", "many"])
def test_no_value_is_larger_than_addresses_are(rendezvous, length):
    path = known(rendezvous, "global/0")
    assert ask(rendezvous, "PUT", path, b"", **{"Content-Length": length})[0] == 413


def test_garbage_harms_nobody(rendezvous, capfd):
    for size in (0, 1, 50, 70_000):
        with socket.create_connection(("127.0.0.1", rendezvous.port), timeout=5) as sock:
            sock.sendall(os.urandom(size))
    with socket.create_connection(("127.0.0.1", rendezvous.port), timeout=5) as silent:
        assert ask(rendezvous, "PUT", known(rendezvous, "global/0"), b"1")[0] == 200
        rendezvous.close()
        assert silent.recv(1) == b""
    assert capfd.readouterr() == ("", "")


def test_closing_ends_its_threads_even_when_somebody_is_silent():
    before = threading.active_count()
    server = Rendezvous("127.0.0.1", TWO)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5):
        server.close()
        server.close()
        assert threading.active_count() == before
