"""What a worker hears of its driver: each question gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from det_core import DetError, wire
from det_core.host import HostLost, Target
from det_core.manifest import Manifest
from det_core.protocol import (
    Answer,
    AskBest,
    AskTarget,
    Checkpointed,
    Meet,
    Progressed,
    Reported,
    Said,
    Validated,
    decode_said,
    encode,
)
from det_core.remote import RemoteHost

KEY = bytes(32)


CHECKPOINT = Manifest(uuid="a", framework="fake", batches=3)


@contextmanager
def driven_by(serve: Callable[[wire.Connection], None], **known: Any) -> Iterator[RemoteHost]:
    """A driver that serves its worker so, as the worker sees it."""
    with (
        closing(wire.Server(KEY, on_connect=serve)) as server,
        closing(RemoteHost(wire.connect(server.address, KEY, timeout=10), **known)) as host,
    ):
        yield host


def words(connection: wire.Connection) -> Iterator[Said]:
    """What a worker says, until it has left."""
    with suppress(wire.ConnectionLost):
        while isinstance(said := decode_said(connection.recv(timeout=10)), Said):
            yield said


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


def test_a_first_target_that_is_known_is_not_asked_for_and_the_next_one_is() -> None:
    heard = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said)
            connection.send(encode(Answer(said.number, target=Target(n=7))))

    with driven_by(serve, target=Target(n=5)) as host:
        assert host.target() == Target(n=5)
        assert heard == []
        assert host.target() == Target(n=7)
    assert heard == [Said(1, AskTarget())]


def test_a_report_and_how_much_is_done_are_one_word_and_else_two() -> None:
    heard = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said.word)
            if isinstance(said.word, AskTarget):
                connection.send(encode(Answer(said.number, target=Target(n=7))))

    with driven_by(serve) as host:
        host.report_at(0.5, "training", 3, {"loss": 1.0})
        super(RemoteHost, host).report_at(0.75, "training", 4, {"loss": 1.0})
        host.target()
    one = Reported("training", 3, {"loss": 1.0}, 0.5)
    assert heard == [one, Reported("training", 4, {"loss": 1.0}), Progressed(0.75), AskTarget()]


def noted() -> tuple[list[Any], dict[str, Any]]:
    """What is noted of checkpoints that have no answer, and what makes a host note it."""
    found: list[Any] = []
    return found, {"unrecorded": lambda *checkpoint: found.append(checkpoint)}


def test_a_checkpoint_is_not_waited_for_where_a_question_follows_and_only_there() -> None:
    heard: list[Said] = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said)
            if isinstance(said.word, Validated):  # it answers the checkpoint only now
                connection.send(encode(Answer(said.number - 1)))
                connection.send(encode(Answer(said.number, target=Target(n=7))))
            elif said.number == 3:
                connection.send(encode(Answer(3)))

    found, notes = noted()
    with driven_by(serve, **notes) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        assert host.validated(3, {"loss": 1.0}, 3) == Target(n=7)
        host.asks_next = False
        assert host.checkpointed(CHECKPOINT, "here") is True
    assert [type(said.word) for said in heard] == [Checkpointed, Validated, Checkpointed]
    with driven_by(serve) as host:  # nobody keeps its words
        host.asks_next = True
        host.progress(0.1)
        host.progress(0.2)
        assert host.checkpointed(CHECKPOINT, "here") is True
    assert found == []


def test_the_error_of_a_checkpoint_that_was_not_waited_for_is_that_of_the_question_behind_it() -> None:
    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            error = "no such trial" if isinstance(said.word, Checkpointed) else ""
            connection.send(encode(Answer(said.number, target=Target(n=7), error=error)))

    with driven_by(serve, **noted()[1]) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        with pytest.raises(DetError, match=r"^no such trial$"):
            host.validated(3, {"loss": 1.0}, 3)


@pytest.mark.parametrize("answered", [False, True])
def test_a_checkpoint_that_has_no_answer_when_the_connection_breaks_is_noted(answered: bool) -> None:
    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            if isinstance(said.word, Validated):
                if answered:
                    connection.send(encode(Answer(said.number - 1)))
                return  # which closes it

    found, notes = noted()
    with driven_by(serve, **notes) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        with pytest.raises(HostLost):
            host.validated(3, {"loss": 1.0}, 3)
    assert found == ([] if answered else [(CHECKPOINT, "here")])


def test_a_host_that_is_closed_by_its_worker_notes_nothing_as_what_was_said_is_kept() -> None:
    heard = threading.Event()

    def serve(connection: wire.Connection) -> None:
        for _ in words(connection):
            heard.set()

    found, notes = noted()
    with driven_by(serve, **notes) as host:
        host.asks_next = True
        host.checkpointed(CHECKPOINT, "here")
        assert heard.wait(10)
    assert found == []
