"""A connection through the standard input and output of a command."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_node import wire
from det_node.wire._stdio import MAGIC, MAX_NOISE

ECHOES = """
from det_node import wire

print("what a login shell says", flush=True)
with wire.stdio() as connection:
    print("what the process prints itself", flush=True)
    for _ in range(2):
        connection.send(connection.recv())
"""


@pytest.fixture
def answers() -> Callable[[bytes], socket.socket]:
    """Return a socket from which these bytes can be received, and then the end."""

    def make(data: bytes) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.sendall(b"never read")
        with theirs:
            theirs.sendall(data)
        return ours

    return make


@given(st.binary(max_size=50).filter(lambda noise: MAGIC[:1] not in noise), st.binary(max_size=99))
def test_noise_before_the_first_frame_is_skipped(noise: bytes, frame: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(noise + MAGIC)
    with wire.Connection(theirs) as sending:
        sending.send(frame)
        with wire.through(ours) as connection:
            assert connection.recv(5) == frame


def test_a_command_that_ends_is_quoted(answers: Callable[[bytes], socket.socket]) -> None:
    """Also one that did not read its input."""
    with (
        answers(b"Permission denied\n") as sock,
        pytest.raises(wire.NotReached, match="it ended") as error,
    ):
        wire.through(sock)
    assert error.value.noise == "Permission denied"


def test_a_command_that_only_prints_is_given_up(answers: Callable[[bytes], socket.socket]) -> None:
    with (
        answers(b"x" * (MAX_NOISE + 1)) as sock,
        pytest.raises(wire.NotReached, match="it did not start det"),
    ):
        wire.through(sock)


@pytest.mark.process
def test_large_frames_pass_through_the_pipes_of_a_process() -> None:
    """Also the last one, which is on its way when the process leaves the connection."""
    ours, theirs = socket.socketpair()
    # `cat` gives the process pipes, as sshd may.
    command = ["sh", "-c", 'cat | "$@" | cat', "sh", sys.executable, "-c", ECHOES]
    with theirs:
        process = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE
        )
    frames = [b"a" * (1 << 20), b"b" * (5 << 20)]
    with wire.through(ours) as connection:
        for frame in frames:
            connection.send(frame)
            assert connection.recv(30) == frame
    _, printed = process.communicate(timeout=30)
    assert printed == b"what the process prints itself\n"
