"""The terminals of shells, for their owners on other machines.

What is typed and what is written are two streams of bytes: the frames of `det_node.terminal`. A
client names the position of the bytes that it sends, and of those that it has. So each request may
be repeated, and nothing is lost or doubled when a connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from det_core.errors import DetError
from det_driver.store import ExperimentState, Store
from det_driver.terminals import SHELL, connect_terminal, find_terminal
from det_web.endpoints import NO_STORE, ROOT, failed
from det_web.openapi import takes

from .users import Role

GONE_SECONDS = 30.0
"""A shell ends when its client has sent no request for so long."""
MOST_TYPED = 64 << 10
"""The most bytes of one request with what was typed."""
_KEPT = 256 << 10
"""The most output that is kept until the client has it. Then the program waits."""
_PIECE = 64 << 10
_OUTPUT_SECONDS, _INPUT_SECONDS = 5.0, 3.0
"""How long a request waits for output, and until the program takes what was typed."""
_POLL_SECONDS = 0.05
_AT_ONCE, _AT_ONCE_OF_ONE = 64, 16
"""The most shells that are connected at the same time, of all users and of one."""


class Opening(msgspec.Struct, forbid_unknown_fields=True):
    """The key of a client, by which it is known in later requests. It is different for each one."""

    key: Annotated[str, msgspec.Meta(min_length=16, max_length=64)]


class Opened(msgspec.Struct):
    """Whether the terminal is connected with the client, or the shell waits for slots."""

    open: bool
    waits: bool


class Input(msgspec.Struct):
    """The client's key, and the position of the first byte of the body in all that was typed."""

    key: str
    at: int


class Output(msgspec.Struct):
    """The client's key, and how many bytes of the output it has."""

    key: str
    after: int


class Closing(msgspec.Struct):
    """The client's key."""

    key: str


class Typed(msgspec.Struct):
    """How many bytes of all that was typed the program's terminal has."""

    at: int


_opening = msgspec.json.Decoder(Opening).decode


class Terminal:
    """The connection between the terminal of a shell and one client of one user.

    It is closed, which ends the shell, when the client has sent nothing for 30 seconds.
    """

    def __init__(self, user: str, key: str, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.user, self.key = user, key
        self.ended = False
        self._socket = connected
        self._output, self._first, self._typed = bytearray(), 0, 0
        self._changed, self._writing = asyncio.Condition(), asyncio.Lock()
        self._asked = time.monotonic()
        self._relaying = asyncio.create_task(self._relay())

    def note_request(self) -> None:
        """Note that the client is there."""
        self._asked = time.monotonic()

    async def wait_until_left(self) -> None:
        """Wait until the client has sent nothing for 30 seconds."""
        while (left := self._asked + GONE_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(left)

    async def close(self) -> None:
        """End the shell, unless it has ended."""
        self._relaying.cancel()
        with suppress(asyncio.CancelledError):
            await self._relaying

    async def _relay(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: len(self._output) < _KEPT)
                chunk = await loop.sock_recv(self._socket, _PIECE)
                if not chunk:
                    return
                async with self._changed:
                    self._output += chunk
                    self._changed.notify_all()
        except OSError:
            # The shell was killed.
            return
        finally:
            self._socket.close()
            self.ended = True
            async with self._changed:
                self._changed.notify_all()

    async def read(self, after: int) -> bytes | None:
        """Return output from a position on, as soon as there is some, or nothing after a while.

        Returns None if no more comes. What is before the position is not kept.
        """
        async with self._changed:
            self._drop(after)
            self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(_OUTPUT_SECONDS):
                    await self._changed.wait_for(lambda: self._output or self.ended)
            # The client may have repeated its request meanwhile.
            self._drop(after)
            if not self._output and self.ended:
                return None
            return bytes(self._output[:_PIECE])

    def _drop(self, after: int) -> None:
        if not self._first <= after <= self._first + len(self._output):
            raise DetError(f"byte {after} of the output is not kept, but from {self._first} on")
        del self._output[: after - self._first]
        self._first = after

    async def write(self, at: int, typed: bytes) -> int:
        """Type bytes that begin at a position, and return the position of the next byte.

        Bytes that were typed before are left out. A program that takes nothing for a while gets
        the rest with a later request.
        """
        async with self._writing:
            if at > self._typed:
                raise DetError(f"byte {self._typed} of what is typed is next, and not {at}")
            rest = memoryview(typed)[self._typed - at :]
            deadline = time.monotonic() + _INPUT_SECONDS
            while rest and not self.ended:
                try:
                    sent = self._socket.send(rest)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        break
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                except OSError:
                    # Its end is in the output.
                    break
                self._typed += sent
                rest = rest[sent:]
            return self._typed


class _Endpoints:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._terminals: dict[int, Terminal] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    @takes(body=Opening, response=Opened)
    async def open(self, request: Request) -> Response:
        """Connect a client with the terminal of a shell, if the shell has begun. For its owner."""
        if refused := await self._refuse(request):
            return refused
        try:
            key = _opening(await request.body()).key
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return failed(400, str(error))
        id, user = request.path_params["id"], request.state.user.name
        async with self._opening:
            return await self._open(id, user, key)

    async def _open(self, id: int, user: str, key: str) -> Response:
        found = self._terminals.get(id)
        if found is not None:
            if found.key != key:
                return failed(409, f"another terminal is connected with shell {id}")
            found.note_request()
            return _reply(Opened(open=True, waits=False))
        there = [each for each in self._terminals.values() if not each.ended]
        if len(there) >= _AT_ONCE or sum(each.user == user for each in there) >= _AT_ONCE_OF_ONE:
            return failed(503, "too many shells are connected at the moment; try again later")
        try:
            place, waits = await run_in_threadpool(self._find, id)
            if place is None:
                return _reply(Opened(open=False, waits=waits))
            connected = await run_in_threadpool(connect_terminal, place)
        except (DetError, OSError) as error:
            return failed(409, str(error))
        if connected is None:
            return failed(410, f"shell {id} has lost its terminal, and ends")
        self._terminals[id] = Terminal(user, key, connected)
        task = asyncio.create_task(self._serve(id, self._terminals[id]))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return _reply(Opened(open=True, waits=False))

    async def _serve(self, id: int, terminal: Terminal) -> None:
        await terminal.wait_until_left()
        await terminal.close()
        if self._terminals.get(id) is terminal:
            del self._terminals[id]

    def _find(self, id: int) -> tuple[Path | None, bool]:
        """Return the socket of a shell, and whether it waits for slots. Raises DetError."""
        with Store.reader(self._home) as store:
            found = store.experiments.get(id)
            if found.task != SHELL:
                raise DetError(f"experiment {id} is no shell; det show {id} shows what it is")
            if found.state is not ExperimentState.ACTIVE or store.experiments.orphaned(found):
                reason = f": {found.reason}" if found.reason else ""
                raise DetError(f"shell {id} has ended{reason}")
            place = find_terminal(store, id)
            return place, place is None and id in store.slots.waiting()

    @takes(query=Output, response="application/octet-stream")
    async def read(self, request: Request) -> Response:
        """Return what a shell has written, and wait a while if that is nothing. For its owner."""
        terminal, after = await self._ask(request, "after")
        if isinstance(terminal, Response):
            return terminal
        try:
            output = await terminal.read(after)
        except DetError as error:
            return failed(409, str(error))
        if output is None:
            return failed(410, "the shell has ended")
        return Response(output, 200, NO_STORE, "application/octet-stream")

    @takes(query=Input, response=Typed)
    async def write(self, request: Request) -> Response:
        """Type into a shell. For its owner."""
        terminal, at = await self._ask(request, "at")
        if isinstance(terminal, Response):
            return terminal
        typed = await request.body()
        if len(typed) > MOST_TYPED:
            return failed(413, f"this is more than {MOST_TYPED} bytes; type less at once")
        try:
            return _reply(Typed(await terminal.write(at, typed)))
        except DetError as error:
            return failed(409, str(error))

    @takes(query=Closing, status=204)
    async def close(self, request: Request) -> Response:
        """Close the terminal of a shell, which ends it. For its owner."""
        terminal, _ = await self._ask(request)
        if isinstance(terminal, Response):
            return terminal
        await terminal.close()
        return Response(status_code=204, headers=NO_STORE)

    async def _ask(self, request: Request, position: str = "") -> tuple[Terminal | Response, int]:
        """Return the terminal of a client and the position in its request, or a refusal."""
        query = request.query_params
        found = self._terminals.get(request.path_params["id"])
        of_client = request.state.user.name, query.get("key", "")
        if (
            found is None
            or (found.user, found.key) != of_client
            or request.state.user.role is Role.VIEWER
        ):
            refused = await self._refuse(request)
            return refused or failed(410, "no terminal is connected by this key"), 0
        given = query.get(position, "") if position else "0"
        if not (given.isascii() and given.isdecimal() and len(given) < 19):
            return failed(400, f"give {position}, a position in bytes"), 0
        found.note_request()
        return found, int(given)

    async def _refuse(self, request: Request) -> Response | None:
        """Return a refusal unless an experiment is owned by who sent the request."""
        user, id = request.state.user, request.path_params["id"]
        owns = user.role is not Role.VIEWER and await run_in_threadpool(request.state.owns, id)
        return None if owns else failed(403, f"only the owner of {id} may use its terminal")


def _reply(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), 200, NO_STORE, "application/json")


def routes(home: Path) -> list[Route]:
    """Return the endpoints for the terminals of shells.

    They find the user in `request.state.user`, and `request.state.owns(number)` tells whether an
    experiment is theirs.
    """
    endpoints, path = _Endpoints(home), f"{ROOT}/experiments/{{id:number}}/terminal"
    return [
        Route(path, endpoints.open, methods=["POST"]),
        Route(path, endpoints.read, methods=["GET"]),
        Route(path, endpoints.write, methods=["PUT"]),
        Route(path, endpoints.close, methods=["DELETE"]),
    ]
