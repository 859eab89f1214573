"""What a worker hears of its driver: each question gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from det_core import DetError, wire
from det_core.host import Target
from det_core.protocol import Answer, AskBest, AskTarget, Meet, Said, decode_said, encode
from det_core.remote import RemoteHost

KEY = bytes(32)


@contextmanager
def driven_by(serve: Callable[[wire.Connection], None]) -> Iterator[RemoteHost]:
    """A driver that serves its worker so, as the worker sees it."""
    with (
        closing(wire.Server(KEY, on_connect=serve)) as server,
        closing(RemoteHost(wire.connect(server.address, KEY, timeout=10))) as host,
    ):
        yield host


def test_an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_question() -> None:
    given_up = threading.Event()

    def serve(connection: wire.Connection) -> None:
        with suppress(wire.ConnectionLost):  # until the worker has left
            while isinstance(said := decode_said(connection.recv(timeout=10)), Said):
                match said.word:
                    case Meet():
                        assert given_up.wait(10)
                        connection.send(encode(Answer(said.number, address=("127.0.0.1", 1))))
                    case AskTarget():
                        connection.send(encode(Answer(said.number, target=Target(n=7))))

    with driven_by(serve) as host:
        with pytest.raises(TimeoutError):
            host.meet(timeout=0.2)
        given_up.set()
        assert host.target() == Target(n=7)


def test_an_error_is_the_answer_to_its_own_question_alone() -> None:
    def serve(connection: wire.Connection) -> None:
        with suppress(wire.ConnectionLost):
            while isinstance(said := decode_said(connection.recv(timeout=10)), Said):
                if isinstance(said.word, AskBest):
                    connection.send(encode(Answer(said.number, error="no such thing")))
                elif isinstance(said.word, AskTarget):
                    connection.send(encode(Answer(said.number - 1, error="the disk is full")))  # of what was only told
                    connection.send(encode(Answer(said.number, target=Target(n=7))))

    with driven_by(serve) as host:
        host.progress(0.5)
        assert host.target() == Target(n=7)
        with pytest.raises(DetError, match=r"^no such thing$"):
            host.best_validation()
        assert host.target() == Target(n=7)
