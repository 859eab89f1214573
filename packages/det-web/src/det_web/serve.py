"""The server process, with limits on connections."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from anyio.to_thread import current_default_thread_limiter
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from det_core.errors import DetError

HEAD_BYTES = 64 << 10
"""The most bytes of a request's first line and headers."""
HEAD_SECONDS = 20.0
MOST_CONNECTIONS = 512
IDLE_SECONDS = 60
MOST_HANDSHAKES = 256
"""The most connections that have not completed TLS. The oldest is closed for the next one."""
TICK_SECONDS = 0.5
EVENTS = "/api/v1/events"
THREADS = 6
"""The most threads that handle requests. More would only wait for Python's interpreter lock."""


class _Listener(socket.socket):
    """A listening socket for TLS, with at most `MOST_HANDSHAKES` that say nothing.

    asyncio tells the protocol of a connection only after its handshake, so `Bounded` cannot count
    the others, and they would take all descriptors.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(fileno=listening.detach())
        self.shaking: dict[Any, weakref.ref[socket.socket]] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        self.shaking.pop(address, None)
        self.shaking[address] = weakref.ref(accepted)
        while len(self.shaking) > MOST_HANDSHAKES:
            oldest = self.shaking.pop(next(iter(self.shaking)))()
            if oldest is not None:
                # asyncio closes it then.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        return accepted, address


class Bounded(H11Protocol):
    """A connection, which is closed if it sends no request within `HEAD_SECONDS`.

    Where there are more than `MOST_CONNECTIONS`, the oldest idle one is closed.
    """

    _late: asyncio.TimerHandle | None = None
    on_shaken: ClassVar[Callable[[Any], object] | None] = None

    def connection_made(self, transport: Any) -> None:
        if (shaken := type(self).on_shaken) is not None:
            shaken(transport.get_extra_info("peername"))
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)
        there = [
            each
            for each in self.connections
            if isinstance(each, Bounded) and not each.transport.is_closing()
        ]
        if len(there) > MOST_CONNECTIONS:
            idle = [each for each in there if each is not self and each.idle]
            min(
                idle or [self], key=lambda each: each._late.when() if each._late else 0.0
            ).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if (late := self._late) is not None:
            late.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # The connection is no longer one of HTTP, and has its own end.
        if self._late is not None:
            self._late.cancel()
        super().handle_websocket_upgrade(event)

    @property
    def idle(self) -> bool:
        """Whether no request is being handled. One whose body has not come is not handled yet."""
        return not self.cycle or self.cycle.response_complete or self.cycle.more_body

    def _close_if_idle(self) -> None:
        # No request has come.
        if not self.cycle:
            self.transport.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises DetError where it cannot listen, such as on a taken port.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=1024)
        # The body of a reply is a packet of its own. Without this option, the kernel sends it after
        # the client has confirmed the first one, up to 40 ms later. Connections inherit it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except OSError as error:
        raise DetError(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}; give another"
            " --port"
        ) from error


class Quiet(uvicorn.Server):
    """A server that saves resources: it wakes up twice a second instead of ten times.

    It has few threads, as each keeps the memory that it has used.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        current_default_thread_limiter().total_tokens = THREADS
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the streams of events, which never end, and shut down."""
        for each in list(self.server_state.connections):
            if isinstance(each, Bounded) and not each.idle and each.scope["path"] == EVENTS:
                each.transport.close()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick):
            tick = (tick + 5) % 864000
            await asyncio.sleep(TICK_SECONDS)


def hold(path: Path, content: str, seconds: float) -> int:
    """Lock a file for as long as this process lives, and return its descriptor.

    The file then has that content, as a process id. Raises BlockingIOError where another process
    holds the lock for longer than `seconds`.
    """
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # A command that looks whether the lock is held holds it for an instant.
            if time.monotonic() > deadline:
                os.close(held)
                raise
            time.sleep(0.01)
    os.ftruncate(held, 0)
    os.write(held, content.encode())
    return held


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what uvicorn says of each WebSocket that is refused by a response."""
    return "without completing handshake" not in record.getMessage()


def serve(
    app: ASGIApp,
    sock: socket.socket,
    tls: tuple[Path, Path] | None = None,
    *,
    most_message: int = 0,
) -> None:
    """Serve until SIGINT or SIGTERM.

    - `tls`: the files of a certificate and of its key.
    - `most_message`: the longest message of a WebSocket. With 0, there are none. Else the package
      websockets is needed.
    """
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * MOST_CONNECTIONS)), hard)
        )
    config = uvicorn.Config(
        app,
        http=Bounded,
        ws="websockets-sansio" if most_message else "none",
        ws_max_size=most_message,
        ws_per_message_deflate=False,
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,
        # asyncio accepts as many at once, before it closes any.
        backlog=MOST_HANDSHAKES,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    if tls:
        sock = _Listener(sock)
        Bounded.on_shaken = staticmethod(partial(_forget, sock.shaking))
    Quiet(config).run(sockets=[sock])


def _forget(shaking: dict[Any, Any], address: Any) -> None:
    shaking.pop(address, None)
