"""The terminal of a shell on a server, as a socket of this process."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlencode

from det_core.errors import DetError
from det_core.support.threads import start_thread

from ._server import Lost, Refusal, RemoteServer

REPLY_SECONDS = 10.0
"""How long a reply may take. The server waits for half of it."""
_LOST_SECONDS = 40.0
"""How long a lost connection is tried. A server ends the shell after 30 seconds."""
_RETRY_SECONDS = 1.0
_BEAT_SECONDS = 5.0
_PIECE = 32 << 10


class RemoteTerminal:
    """The terminal of a shell on a server. `connect` makes a connection to the server.

    When `open` has returned True, `socket` is connected with the terminal. Use it as a context
    manager: its end closes the terminal, which ends the shell.
    """

    def __init__(self, connect: Callable[[], RemoteServer], experiment: int) -> None:
        self.socket, self._other = socket.socketpair()
        self.problem: DetError | None = None
        self._connect = connect
        self._path = f"/experiments/{experiment}/terminal"
        self._key = uuid.uuid4().hex
        self._replied = time.monotonic()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self) -> tuple[bool, bool]:
        """Return whether the shell has begun, and otherwise whether it waits for slots.

        Raises DetError where the shell has ended, or its terminal belongs to another client.
        """
        body = json.dumps({"key": self._key}).encode()
        reply = json.loads(self._ask(self._connect(), "POST", self._path, body))
        if reply["open"]:
            for move in (self._move_output, self._move_input):
                self._threads.append(start_thread(self._run, move, name="det-terminal"))
        return bool(reply["open"]), bool(reply["waits"])

    def __enter__(self) -> RemoteTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for each in (self.socket, self._other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if self._threads:
            # A terminal that is not closed ends for want of its client, only later.
            with suppress(DetError):
                self._connect().send("DELETE", f"{self._path}?{urlencode({'key': self._key})}")
            for thread in self._threads:
                thread.join(REPLY_SECONDS)
        for each in (self.socket, self._other):
            each.close()

    def _run(self, move: Callable[[RemoteServer], None]) -> None:
        server = self._connect()
        try:
            move(server)
        except DetError as error:
            self.problem = self.problem or error
        except (ValueError, KeyError, TypeError):
            self.problem = DetError(f"{server.address} answers as no det server of this version")
        # The other end has gone.
        except OSError:
            pass
        finally:
            server.close()
            with suppress(OSError):
                self._other.shutdown(socket.SHUT_RDWR)

    def _move_output(self, server: RemoteServer) -> None:
        after = 0
        while not self._over.is_set():
            output = self._ask(server, "GET", self._target(after=after))
            self._other.sendall(output)
            after += len(output)

    def _move_input(self, server: RemoteServer) -> None:
        """Send what is typed, and otherwise from time to time that this client is there."""
        at, typed = 0, b""
        while not self._over.is_set():
            if not typed and select.select([self._other], [], [], _BEAT_SECONDS)[0]:
                typed = self._other.recv(_PIECE)
                if not typed:
                    return
            reply = json.loads(self._ask(server, "PUT", self._target(at=at), typed))
            typed = typed[int(reply["at"]) - at :]
            at = int(reply["at"])

    def _target(self, **position: int) -> str:
        return f"{self._path}?{urlencode({'key': self._key, **position})}"

    def _ask(
        self, server: RemoteServer, method: str, path: str, body: bytes | None = None
    ) -> bytes:
        """Return the reply to a request, which is repeated while the connection is lost."""
        while True:
            try:
                reply = server.send(method, path, body)
            except (Lost, Refusal) as error:
                is_refused = isinstance(error, Refusal) and error.status != 503
                late = time.monotonic() - self._replied > _LOST_SECONDS
                if is_refused or late or self._over.wait(_RETRY_SECONDS):
                    raise
            else:
                self._replied = time.monotonic()
                return reply
