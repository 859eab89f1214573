"""What a worker hears of its driver: each question gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from det_core import DetError
from det_core.checkpoint.manifest import Manifest
from det_core.train.host import HostLost, Target
from det_node import wire
from det_node.protocol import (
    AskBest,
    AskTarget,
    Checkpointed,
    Envelope,
    Meet,
    Progressed,
    Reply,
    Reported,
    Validated,
    decode_envelope,
    encode,
)
from det_node.remote import RemoteHost

pytestmark = pytest.mark.process

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


def words(connection: wire.Connection) -> Iterator[Envelope]:
    """What a worker says, until it has left."""
    with suppress(wire.ConnectionLost):
        while isinstance(said := decode_envelope(connection.recv(timeout=10)), Envelope):
            yield said


def test_late_reply_is_not_used_for_the_next_request() -> None:
    given_up = threading.Event()

    def serve(connection: wire.Connection) -> None:
        with suppress(wire.ConnectionLost):  # until the worker has left
            while isinstance(said := decode_envelope(connection.recv(timeout=10)), Envelope):
                match said.message:
                    case Meet():
                        assert given_up.wait(10)
                        connection.send(encode(Reply(said.number, address=("127.0.0.1", 1))))
                    case AskTarget():
                        connection.send(encode(Reply(said.number, target=Target(n=7))))

    with driven_by(serve) as host:
        with pytest.raises(TimeoutError):
            host.exchange_chief_address(timeout=0.2)
        given_up.set()
        assert host.target() == Target(n=7)


def test_an_error_is_the_answer_to_its_own_question_alone() -> None:
    def serve(connection: wire.Connection) -> None:
        with suppress(wire.ConnectionLost):
            while isinstance(said := decode_envelope(connection.recv(timeout=10)), Envelope):
                if isinstance(said.message, AskBest):
                    connection.send(encode(Reply(said.number, error="no such thing")))
                elif isinstance(said.message, AskTarget):
                    connection.send(
                        encode(Reply(said.number - 1, error="the disk is full"))
                    )  # of what was only told
                    connection.send(encode(Reply(said.number, target=Target(n=7))))

    with driven_by(serve) as host:
        host.progress(0.5)
        assert host.target() == Target(n=7)
        with pytest.raises(DetError, match=r"^no such thing$"):
            host.best_validation()
        assert host.target() == Target(n=7)


def test_report_after_the_end_says_that_the_context_is_left() -> None:
    """The driver is there, and the script has closed its connection."""
    with driven_by(lambda connection: [*words(connection)] and None) as host:
        host.progress(0.5)
    for call in (lambda: host.progress(1.0), host.best_validation):
        with pytest.raises(HostLost, match=r"is closed; report before core\.Context is left$"):
            call()


def test_known_first_target_is_not_requested() -> None:
    heard = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said)
            connection.send(encode(Reply(said.number, target=Target(n=7))))

    with driven_by(serve, target=Target(n=5)) as host:
        assert host.target() == Target(n=5)
        assert heard == []
        assert host.target() == Target(n=7)
    assert heard == [Envelope(1, AskTarget())]


def test_a_report_and_how_much_is_done_are_one_word_and_else_two() -> None:
    heard = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said.message)
            if isinstance(said.message, AskTarget):
                connection.send(encode(Reply(said.number, target=Target(n=7))))

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


def test_checkpoint_waits_for_no_ack_when_a_request_follows() -> None:
    heard: list[Envelope] = []

    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            heard.append(said)
            if isinstance(said.message, Validated):  # it answers the checkpoint only now
                connection.send(encode(Reply(said.number - 1)))
                connection.send(encode(Reply(said.number, target=Target(n=7))))
            elif said.number == 3:
                connection.send(encode(Reply(3)))

    found, notes = noted()
    with driven_by(serve, **notes) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        assert host.validated(3, {"loss": 1.0}, 3) == Target(n=7)
        host.asks_next = False
        assert host.checkpointed(CHECKPOINT, "here") is True
    assert [type(said.message) for said in heard] == [Checkpointed, Validated, Checkpointed]
    with driven_by(serve) as host:  # nobody keeps its words
        host.asks_next = True
        host.progress(0.1)
        host.progress(0.2)
        assert host.checkpointed(CHECKPOINT, "here") is True
    assert found == []


def test_checkpoint_error_is_raised_by_the_request_that_follows() -> None:
    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            error = "no such trial" if isinstance(said.message, Checkpointed) else ""
            connection.send(encode(Reply(said.number, target=Target(n=7), error=error)))

    with driven_by(serve, **noted()[1]) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        with pytest.raises(DetError, match=r"^no such trial$"):
            host.validated(3, {"loss": 1.0}, 3)


@pytest.mark.parametrize("answered", [False, True])
def test_unacknowledged_checkpoint_is_noted_at_a_lost_connection(answered: bool) -> None:
    def serve(connection: wire.Connection) -> None:
        for said in words(connection):
            if isinstance(said.message, Validated):
                if answered:
                    connection.send(encode(Reply(said.number - 1)))
                return  # which closes it

    found, notes = noted()
    with driven_by(serve, **notes) as host:
        host.asks_next = True
        assert host.checkpointed(CHECKPOINT, "here") is False
        with pytest.raises(HostLost):
            host.validated(3, {"loss": 1.0}, 3)
    assert found == ([] if answered else [(CHECKPOINT, "here")])


def test_host_closed_by_its_worker_notes_no_checkpoint() -> None:
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


@pytest.mark.process
def test_what_no_driver_can_read_is_refused_before_it_is_sent() -> None:
    heard: list[Envelope] = []
    left = threading.Event()

    def serve(connection: wire.Connection) -> None:
        heard.extend(words(connection))
        left.set()

    with driven_by(serve) as host:
        with pytest.raises(DetError, match=r"det cannot send Reported: .*message.batches"):
            host.report("training", 1.5, {})  # type: ignore[arg-type]
        host.report("training", 2, {})
        host.close()
        assert left.wait(10)
    assert [(said.number, said.message) for said in heard] == [(1, Reported("training", 2, {}))]
