"""The server of a terminal, with clients of these tests."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from det_node.terminal import attach_terminal

pytestmark = pytest.mark.process

SERVER = """
import sys
from pathlib import Path
from det_node import terminal
terminal._END_SECONDS = 1.5
terminal.serve_terminal(Path(sys.argv[1]), sys.argv[2:], Path("/"))
"""


@contextmanager
def connected(place: Path, *command: str) -> Iterator[socket.socket]:
    """Yield a client of a program in a terminal."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(place), *command])
    try:
        while not place.is_socket():
            assert server.poll() is None
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            yield client
        server.wait(30)
    finally:
        server.kill()


def read(client: socket.socket, *, pause: float = 0.0) -> tuple[bytes, list[int]]:
    """Return the output and the exit status, read in pieces with a pause between them."""
    received = b""
    while chunk := client.recv(10_000):
        received += chunk
        time.sleep(pause)
    output, statuses = b"", []
    while received:
        kind, length = struct.unpack_from(">cI", received)
        content, received = received[5 : 5 + length], received[5 + length :]
        if kind == b"x":
            statuses += struct.unpack(">i", content)
        else:
            output += content
    return output, statuses


def test_a_slow_client_gets_all_output_and_the_status(tmp_path):
    code = "import os; [os.write(1, b'x' * 1000) for _ in range(600)]; os._exit(3)"
    with connected(tmp_path / "terminal", sys.executable, "-c", code) as client:
        # The rest takes longer than the server waits for a client that takes nothing.
        output, statuses = read(client, pause=0.1)
    assert (len(output), statuses) == (600_000, [3])


def test_a_program_in_a_terminal_ignores_no_signal(tmp_path):
    """A driver that `nohup` or a script has started ignores some, and so do its processes."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        with connected(tmp_path / "terminal", "grep", "SigIgn", "/proc/self/status") as client:
            output, statuses = read(client)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert (int(output.split()[1], 16), statuses) == (0, [0])


def test_a_server_that_is_gone_has_no_status(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "terminal"))
    assert attach_terminal(tmp_path / "terminal") is None
    assert attach_terminal(tmp_path / "none") is None
