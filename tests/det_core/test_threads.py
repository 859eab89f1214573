"""What fails in a thread is known to whoever depends on it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from det_core.support.threads import start_at_once, start_thread
from det_core.train.host import HostLost
from det_node import wire
from det_node.remote import RemoteHost

SECONDS = 20.0


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """Let the system refuse each new thread, as it does where its user may have no more."""
    before = threading.stack_size(1 << 46)
    yield
    threading.stack_size(before)


@pytest.mark.parametrize(
    "error",
    [ValueError("odd"), SystemExit(3), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_a_thread_is_printed_and_passed_on(
    error: BaseException, capsys: pytest.CaptureFixture
) -> None:
    """A SystemExit, too, which `threading` drops."""
    failures: list[BaseException] = []

    def fail(text: str) -> None:
        assert text == "given"
        raise error

    start_thread(fail, "given", name="det-test", failed=failures.append).join(SECONDS)
    assert failures == [error]
    printed = capsys.readouterr().err
    assert printed.startswith("det: the thread det-test has failed:\nTraceback")
    assert type(error).__name__ in printed


def test_a_thread_that_is_started_at_once_fails_alike() -> None:
    failures, failed = list[BaseException](), threading.Event()

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    start_at_once(lambda: 1 // 0, name="det-test", failed=note)
    assert failed.wait(SECONDS)
    assert isinstance(failures[0], ZeroDivisionError)


def test_no_more_threads_is_an_error_of_the_system(no_more_threads: None) -> None:
    for start in (start_thread, start_at_once):
        with pytest.raises(OSError, match="ulimit -u") as caught:
            start(lambda: None, name="det-test", failed=lambda error: None)
        assert caught.value.errno == errno.EAGAIN


@pytest.mark.process
def test_handler_error_is_reported_and_the_peer_disconnected() -> None:
    failures, failed = list[BaseException](), threading.Event()

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    key = wire.new_key()
    with (
        wire.Server(key, lambda connection: 1 // 0, failed=note) as server,
        wire.connect(server.address, key) as peer,
    ):
        with pytest.raises(wire.ConnectionLost):
            peer.recv(timeout=SECONDS)
        assert failed.wait(SECONDS)
    assert isinstance(failures[0], ZeroDivisionError)


@pytest.mark.process
def test_a_peer_waits_until_there_is_a_thread_for_it(no_more_threads: None) -> None:
    """Its connection is not closed at once, which would fail its run."""
    key = wire.new_key()
    threading.stack_size(0)
    with wire.Server(key, lambda connection: connection.send(b"served")) as server:
        threading.stack_size(1 << 46)
        with pytest.raises(OSError, match="ulimit -u"):
            server.give(1)
        with wire.connect(server.address, key) as peer:
            with pytest.raises(TimeoutError):
                peer.recv(timeout=0.5)
            threading.stack_size(0)
            assert peer.recv(timeout=SECONDS) == b"served"


@pytest.mark.process
def test_request_fails_when_the_listener_thread_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    key, answered = wire.new_key(), threading.Event()

    def serve(connection: wire.Connection) -> None:
        connection.recv()
        answered.wait(SECONDS)

    with wire.Server(key, serve) as server:
        connection = wire.connect(server.address, key)
        monkeypatch.setattr(connection, "recv", lambda: 1 // 0)
        host = RemoteHost(connection)
        with pytest.raises(HostLost):
            host.target()
        assert host.preempted.raised
        answered.set()
        connection.close()
