"""The server process: it listens, and bounds what connections may cost."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from det_core.errors import DetError

HEAD_BYTES = 64 << 10
"""Of a request's first line and headers."""
HEAD_SECONDS = 20.0
MOST_CONNECTIONS = 512
IDLE_SECONDS = 60
TICK_SECONDS = 0.5
EVENTS = "/api/v1/events"
THREADS = 6
"""Of the server, to answer in: what they do is bound by one lock anyhow."""


class Bounded(H11Protocol):
    """A connection; of those that say nothing the oldest is closed where there are too many, and each after a while."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)
        there = [each for each in self.connections if isinstance(each, Bounded) and not each.transport.is_closing()]
        if len(there) > MOST_CONNECTIONS:
            idle = [each for each in there if each is not self and each.idle]
            min(idle or [self], key=lambda each: each._late.when() if each._late else 0.0).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if (late := self._late) is not None:
            late.cancel()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether nothing is being answered."""
        return not self.cycle or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if not self.cycle:  # no request has come
            self.transport.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; DetError where the port is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise DetError(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}; give another --port"
        ) from error


class Quiet(uvicorn.Server):
    """Wakes up twice a second, not ten times, while nobody asks; has few threads, as each keeps memory for what it did."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        current_default_thread_limiter().total_tokens = THREADS
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut what goes on for ever first, so that nothing is left to be waited for in vain."""
        for each in list(self.server_state.connections):
            if isinstance(each, Bounded) and not each.idle and each.scope["path"] == EVENTS:
                each.transport.close()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick):
            tick = (tick + 5) % 864000
            await asyncio.sleep(TICK_SECONDS)


def serve(app: ASGIApp, sock: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * MOST_CONNECTIONS)), hard))
    config = uvicorn.Config(
        app,
        http=Bounded,
        ws="none",
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
    )
    Quiet(config).run(sockets=[sock])
