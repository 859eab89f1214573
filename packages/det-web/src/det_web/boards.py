"""Starts TensorBoard for chosen experiments, when it is asked for. It ends with the server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from det_core.errors import DetError
from det_node.guard import start_guarded

_START_SECONDS = 60.0


@dataclass(frozen=True)
class _Board:
    process: subprocess.Popen[bytes]
    # The process ends when the server closes this descriptor, or ends.
    held: int
    port: int

    @property
    def is_reachable(self) -> bool:
        """Whether it accepts connections. Waits until it does, or `_START_SECONDS` at most."""
        deadline = time.monotonic() + _START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            time.sleep(0.05)
        return False


class Boards:
    """The TensorBoards that a server has started, one for each choice of experiments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[tuple[Path, ...], _Board] = {}

    def open(self, places: dict[int, Path]) -> str:
        """Return the address of a TensorBoard for these experiments' directories.

        It may be a new one.

        Raises DetError where TensorBoard is not installed, no event files exist, or it does not
        start.
        """
        if find_spec("tensorboard") is None:
            raise DetError("tensorboard is not installed with det-web; pip install tensorboard")
        if not any(place.is_dir() for place in places.values()):
            raise DetError(
                "no trial of these has written event files; det does so where tensorboard is"
                " installed"
            )
        with self._lock:
            key = tuple(places.values())
            board = self._started.get(key)
            if board is None or board.process.poll() is not None:
                board = self._started[key] = _start(places)
            if not board.is_reachable:
                numbers = " ".join(map(str, places))
                raise DetError(
                    f"TensorBoard did not come; see what it says: det tensorboard {numbers}"
                )
        return f"http://127.0.0.1:{board.port}/"


def _start(places: dict[int, Path]) -> _Board:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    spec = ",".join(f"experiment-{id}:{place}" for id, place in places.items())
    command = [
        sys.executable,
        "-P",
        "-m",
        "tensorboard.main",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return _Board(*start_guarded([*command, "--logdir_spec", spec], **silent), port)
