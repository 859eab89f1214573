"""Starts drivers as forks of a process that has imported what they need."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from det_node.terminal import short_path

SOCKET = "drivers.sock"
_SERVER = ("-P", "-m", "det_driver.cli.fork_server")
_START_SECONDS = 30.0
"""How long the server may take for a start. Its imports before the first one take less than 1 s."""
_END_SECONDS = 5.0
_MOST_RESTARTS = 5


class ForkedDriver:
    """A driver that a fork server has started. Its methods are those of `subprocess.Popen`."""

    def __init__(self, pid: int, replies: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._replies = replies
        self._pidfd: int | None = None
        # It may have ended.
        with suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status, or None while the driver runs.

        The status is 1 if the fork server is gone, which would know it.
        """
        is_running = self._pidfd is not None and not _is_readable(self._pidfd)
        if self.returncode is None and not is_running:
            self.returncode = _receive(self._replies).get("status", 1)
        return self.returncode

    def close(self) -> None:
        """Watch the driver no longer. It goes on."""
        self._replies.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class DriverForkServer(AbstractContextManager["DriverForkServer"]):
    """A process that forks the drivers of one home, at a socket in the home.

    A new interpreter that imports what a driver needs takes some tenths of a second of processor
    time, and a fork some hundredths. The process ends with the context, or with this process.
    Drivers outlive it. Only one fork server may be opened for a home.
    """

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._path = home / SOCKET
        self._environ = driver_environ(home, environ)
        self._restarts, self._is_listening = 0, False
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def __enter__(self) -> Self:
        # On a file system without sockets, drivers are started without it.
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            with short_path(self._path) as short:
                self._listener.bind(short)
                os.chmod(short, 0o600)
            self._listener.listen(256)
            self._is_listening = True
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._path.unlink(missing_ok=True)
        self._listener.close()
        self._end()

    def _start(self) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            descriptors = self._listener.fileno(), theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *_SERVER, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
                pass_fds=descriptors,
            )

    def keep(self) -> None:
        """Start the process again if it was killed. Requests wait for it meanwhile.

        After five restarts, drivers are started without it. Raises OSError if there can be no more
        processes.
        """
        is_running = self._process is not None and self._process.poll() is None
        if is_running or not self._is_listening:
            return
        self._end()
        if self._restarts == _MOST_RESTARTS:
            self._is_listening = False
            self._path.unlink(missing_ok=True)
            self._listener.close()
            return
        self._restarts += 1
        self._start()

    def _end(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_readable(descriptor: int) -> bool:
    # A server may have more descriptors than `select.select` knows.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def driver_environ(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a driver of a home."""
    return {**environ, "DET_HOME": str(home), "DET_MASTER": ""}


def resume_command(experiment_id: int) -> list[str]:
    """Return the arguments of an interpreter that runs a driver."""
    return ["-P", "-m", "det_driver.cli", "resume", str(experiment_id)]


@contextmanager
def started_driver(
    home: Path, experiment_id: int, environ: Mapping[str, str], output: BinaryIO
) -> Iterator[ForkedDriver | subprocess.Popen[bytes]]:
    """Start a driver that writes to `output`, in a process that outlives this one.

    Yields the process: a fork where the home has a fork server, and a fork is as good as a new
    interpreter.
    """
    full = driver_environ(home, environ)
    if (forked := _fork(home, experiment_id, full, output)) is None:
        yield subprocess.Popen(
            [sys.executable, *resume_command(experiment_id)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=full,
        )
        return
    try:
        yield forked
    finally:
        forked.close()


def _fork(
    home: Path, experiment_id: int, environ: Mapping[str, str], output: BinaryIO
) -> ForkedDriver | None:
    """Return a driver that the fork server of a home has started.

    None if there is no such server, it fails, or it has another interpreter or other variables.
    """
    request = {"experiment": experiment_id, "python": sys.executable, "environ": dict(environ)}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_START_SECONDS)
    with suppress(OSError):
        with short_path(home / SOCKET) as short:
            connection.connect(short)
        socket.send_fds(connection, [json.dumps(request).encode()], [output.fileno()])
        if pid := _receive(connection).get("pid"):
            return ForkedDriver(pid, connection)
    connection.close()
    return None


def _receive(connection: socket.socket) -> dict[str, int]:
    """Return the next reply, or an empty one where there is none in time."""
    with suppress(OSError, ValueError):
        found: dict[str, int] = json.loads(connection.recv(1024))
        return found
    return {}
