"""A terminal whose program is a process of a run: a pseudo-terminal behind a Unix socket.

The server runs a program in a pseudo-terminal, and ends it when the client is gone. The client
connects it with the terminal of a user. Both send frames: a byte for the kind, the length, and the
content. `d` is input or output, `w` the rows and columns of the window, and `x` the exit status.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from det_node.process import TIMED_OUT

SOCKET = "terminal"
"""The socket in the scratch directory of a run."""
_HEADER = struct.Struct(">cI")
_WINDOW = struct.Struct(">HH")
_STATUS = struct.Struct(">i")
_CHUNK = 1 << 16
_MOST = 1 << 18
_ON_THE_WAY = 1 << 15
_CLIENT_SECONDS = 30.0
"""How long the server waits for its client."""
_END_SECONDS = 5.0
"""How long a program may take to end after SIGHUP, and the client to take more of the output."""
_POLL_SECONDS = 1.0


STOPPED = 1
"""The exit status of a program whose slots were needed, or that was canceled."""


class _Ended(Exception):
    """The server has to end its program, with a status, for the reason that is its text."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class _Connection:
    """Frames over a socket. What is sent is kept until the other side takes it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.number = connected.fileno()
        self._received, self._unsent = bytearray(), bytearray()

    @property
    def is_full(self) -> bool:
        """Whether the other side has to take something before more is sent."""
        return len(self._unsent) > _MOST

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def send(self, kind: bytes, content: bytes) -> None:
        """Add a frame to what `flush` sends."""
        self._unsent += _HEADER.pack(kind, len(content)) + content

    def flush(self) -> None:
        """Send what the other side takes now. Raises OSError when it is gone."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames that have arrived. Raises EOFError when the other side is gone."""
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            raise EOFError
        self._received += chunk
        while len(self._received) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            content = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            yield kind, content


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path for a socket, whose paths have at most 108 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def serve_terminal(
    path: Path,
    command: Sequence[str],
    directory: Path,
    *,
    max_seconds: float | None = None,
    idle_seconds: float | None = None,
) -> None:
    """Run a program in a pseudo-terminal for the one client that connects to `path`.

    It ends when the program ends, when the client is gone or does not come within 30 seconds, at
    SIGTERM, after `max_seconds`, or when nothing was typed or written for `idle_seconds`.
    """

    def end(number: int, frame: object) -> NoReturn:
        raise _Ended("its slots are needed, or it was canceled", STOPPED)

    signal.signal(signal.SIGTERM, end)
    try:
        accepted = await_client(path)
    except _Ended:
        accepted = None
    if accepted is None:
        sys.stderr.write("det: no terminal was connected\n")
        return
    with accepted:
        # The less is on the way, the sooner it is seen that a slow client takes something.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ON_THE_WAY)
        _Server(_Connection(accepted), max_seconds, idle_seconds).serve(command, directory)


def await_client(path: Path) -> socket.socket | None:
    """Serve a terminal at `path`. Return the connection of its one client.

    Returns None if no client connects within 30 seconds.
    """
    # The directory is private to the user, and so is the socket.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(path) as short:
            listener.bind(f"{short}.new")
            os.chmod(f"{short}.new", 0o600)
            listener.listen(1)
            # A client that finds the socket can connect to it.
            os.rename(f"{short}.new", short)
        listener.settimeout(_CLIENT_SECONDS)
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            return None
    accepted.settimeout(None)
    return accepted


class _Server:
    def __init__(self, client: _Connection, most: float | None, idle: float | None) -> None:
        self._client = client
        self._most, self._idle = most, idle
        self._typed = bytearray()

    def serve(self, command: Sequence[str], directory: Path) -> None:
        pid, terminal = pty.fork()
        if not pid:
            _become(command, directory)
        os.set_blocking(terminal, False)
        pidfd = os.pidfd_open(pid)
        end: _Ended | None = None
        gone = False
        try:
            self._relay(terminal, pidfd)
        except _Ended as ended:
            end = ended
        except (EOFError, OSError):
            gone = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The kernel sends SIGHUP to the session of the terminal.
        os.close(terminal)
        is_over = bool(select.select([pidfd], [], [], _END_SECONDS)[0])
        if not gone:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if is_over else 0
            if end is not None:
                self._client.send(b"d", f"\r\ndet: this shell ends: {end}\r\n".encode())
                # That of the program would be the one of SIGHUP, or whatever it makes of it.
                status = end.status
            self._client.send(b"x", _STATUS.pack(128 - status if status < 0 else status))
            self._finish()
        # Whoever started this process kills what is left.

    def _relay(self, terminal: int, pidfd: int) -> None:
        """Relay until the program ends. Raises _Ended, or EOFError when the client is gone."""
        began = active = time.monotonic()
        limited = self._most is not None or self._idle is not None
        while True:
            reads = [pidfd]
            reads += [self._client.number] if len(self._typed) < _MOST else []
            reads += [] if self._client.is_full else [terminal]
            writes = [self._client.number] if self._client.has_unsent else []
            writes += [terminal] if self._typed else []
            ready, writable, _ = select.select(
                reads, writes, [], _POLL_SECONDS if limited else None
            )
            now = time.monotonic()
            if self._client.number in ready:
                active = now
                self._take(terminal)
            if terminal in ready:
                active = now
                if not self._read(terminal):
                    return
            elif pidfd in ready:
                # A process in the background may keep the terminal open.
                self._drain(terminal)
                return
            if terminal in writable:
                with suppress(BlockingIOError):
                    del self._typed[: os.write(terminal, self._typed)]
            self._client.flush()
            if self._most is not None and now - began >= self._most:
                raise _Ended(f"it ran for {self._most:g} seconds, which is its limit", TIMED_OUT)
            if self._idle is not None and now - active >= self._idle:
                idle = f"it was idle for {self._idle:g} seconds, which is its limit"
                raise _Ended(idle, TIMED_OUT)

    def _take(self, terminal: int) -> None:
        for kind, content in self._client.receive():
            if kind == b"d":
                self._typed += content
            elif kind == b"w" and len(content) == _WINDOW.size:
                size = struct.pack("HHHH", *_WINDOW.unpack(content), 0, 0)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)

    def _read(self, terminal: int) -> bool:
        """Pass output on. Return False when no process has the terminal open."""
        try:
            self._client.send(b"d", os.read(terminal, _CHUNK))
        except BlockingIOError:
            return True
        # Linux reports EIO.
        except OSError:
            return False
        return True

    def _drain(self, terminal: int) -> None:
        """Pass on what the program wrote before its end, unless the client does not take it."""
        while not self._client.is_full or self._flush():
            if not self._client.is_full and not (
                select.select([terminal], [], [], 0)[0] and self._read(terminal)
            ):
                return

    def _finish(self) -> None:
        """Send the rest, unless the client does not take it."""
        with suppress(OSError):
            while self._client.has_unsent and self._flush():
                pass

    def _flush(self) -> bool:
        """Send what a slow client takes. Return False when it takes nothing for a while."""
        is_ready = bool(select.select([], [self._client.number], [], _END_SECONDS)[1])
        if is_ready:
            self._client.flush()
        return is_ready


def _become(command: Sequence[str], directory: Path) -> NoReturn:
    """Replace this process, the child at the pseudo-terminal, with the program."""
    try:
        # No shell can undo that a signal is ignored. Python ignores SIGPIPE, so that `yes | head`
        # would report an error. After `nohup det run &`, SIGHUP, SIGINT and SIGQUIT are ignored.
        for each in signal.valid_signals():
            if signal.getsignal(each) is signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        os.chdir(directory)
        os.execvp(command[0], [*command])
    except OSError as error:
        os.write(2, f"det: the shell cannot be started: {error}\n".encode())
    os._exit(127)


def attach_terminal(path: Path) -> int | None:
    """Connect the terminal of this process with the one that is served at `path`.

    Returns what `relay_terminal` does, and None when the server is gone.
    """
    connected = connect_terminal(path)
    if connected is None:
        return None
    with connected:
        return relay_terminal(connected)


def connect_terminal(path: Path) -> socket.socket | None:
    """Return a connection to the terminal that is served at `path`, or None if it is gone."""
    connected = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            connected.connect(short)
    except OSError as error:
        connected.close()
        # The server has not waited for so long.
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            return None
        raise
    return connected


def relay_terminal(connected: socket.socket) -> int | None:
    """Connect the terminal of this process with the server at the other end of a socket.

    Returns the exit status of the program, or None when the server is gone. The terminal is raw
    meanwhile, so that keys such as Ctrl-C reach the program.
    """
    with _raw_terminal() as resized:
        return _relay_keys(_Connection(connected), resized)


def _relay_keys(server: _Connection, resized: int) -> int | None:
    keys: list[int] = [sys.stdin.fileno()]
    server.send(b"w", _window())
    while True:
        reads = [server.number, resized, *([] if server.is_full else keys)]
        writes = [server.number] if server.has_unsent else []
        ready, _, _ = select.select(reads, writes, [])
        try:
            if server.number in ready:
                for kind, content in server.receive():
                    if kind == b"x":
                        return int(_STATUS.unpack(content)[0])
                    output = memoryview(content)
                    while output:
                        output = output[os.write(sys.stdout.fileno(), output) :]
            if resized in ready:
                os.read(resized, _CHUNK)
                server.send(b"w", _window())
            if keys and keys[0] in ready:
                typed = os.read(keys[0], _CHUNK)
                if not typed:
                    keys.clear()
                server.send(b"d", typed)
            server.flush()
        except (EOFError, OSError):
            return None


def _window() -> bytes:
    size = os.get_terminal_size(sys.stdout.fileno())
    return _WINDOW.pack(size.lines, size.columns)


@contextmanager
def _raw_terminal() -> Iterator[int]:
    """Make the terminal raw. Yield a descriptor that is readable when the window has changed."""
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    handlers = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda number, frame: None),
        # The terminal is restored, and the program ends with the connection.
        **{
            each: signal.signal(each, lambda number, frame: sys.exit(128 + number))
            for each in (signal.SIGTERM, signal.SIGHUP)
        },
    }
    wakeup = signal.set_wakeup_fd(writable)
    try:
        # Keys that were typed before are not lost.
        tty.setraw(keys, termios.TCSADRAIN)
        yield readable
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # The terminal may be gone.
        with suppress(termios.error):
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        os.close(readable)
        os.close(writable)
