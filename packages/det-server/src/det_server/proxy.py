"""Passes requests for a notebook to its JupyterLab, over HTTP and WebSockets, for its owner only.

Its page has scripts of others, and the origin of the page of det. So they are confined to the
addresses of the notebook by a Content-Security-Policy, which `confine` makes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import anyio
import httpx2
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Origin, Subprotocol

from det_node.notebook import SOCKET, base_url
from det_web.guard import find_notebook, last_header, read_headers, refusal

from .notebooks import MOST_MESSAGE, find_scratch

MOST_SOCKETS = 64
"""The most WebSockets of one notebook. JupyterLab has one for each kernel and terminal of a tab."""
_MOST_REQUESTS = 32
_CONNECT_SECONDS, _SILENT_SECONDS, _BODY_SECONDS = 10.0, 300.0, 60.0
_OPEN_SECONDS = 90.0
"""How long a WebSocket may take to open: Jupyter waits for a busy kernel for 60 seconds."""
_CHUNK_LIMITS = httpx2.Limits(max_connections=_MOST_REQUESTS, keepalive_expiry=30.0)
_TIMEOUTS = {"connect": _CONNECT_SECONDS, "read": _SILENT_SECONDS, "write": _BODY_SECONDS}
_TIMEOUTS |= {"pool": _BODY_SECONDS}
_HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("proxy-connection", "trailer", "transfer-encoding", "upgrade"),
    )
)
_NOT_UP = _HOP_BY_HOP | {"authorization", "cookie", "expect"}
_NOT_DOWN = _HOP_BY_HOP | frozenset(
    (
        # What is about the whole origin, which is not the notebook's.
        *("clear-site-data", "strict-transport-security", "service-worker-allowed", "alt-svc"),
        *("cross-origin-opener-policy", "cross-origin-resource-policy", "x-frame-options"),
        *("referrer-policy", "access-control-allow-origin", "access-control-allow-credentials"),
        *("nel", "report-to", "reporting-endpoints", "server", "date"),
    )
)
_NORMAL, _LATER = 1000, 1013
_UNSENDABLE = {1005, 1006, 1015}
"""Codes that say how a WebSocket ended without one."""


class _GoneError(Exception):
    """The client has left."""


class _SlowError(Exception):
    """The client does not send the rest of its request."""


class _Upstream:
    """The JupyterLab of one run, behind the socket in its scratch directory.

    The socket is found by a descriptor of the directory, as paths of sockets have 108 bytes at
    most.
    """

    def __init__(self, scratch: Path) -> None:
        self._folder = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.path = f"/proc/self/fd/{self._folder}/{SOCKET}"
        self.transport = httpx2.AsyncHTTPTransport(
            uds=self.path, limits=_CHUNK_LIMITS, trust_env=False
        )
        self.sockets = 0

    @property
    def is_there(self) -> bool:
        """Whether its socket still exists."""
        return os.path.exists(self.path)

    async def close(self) -> None:
        await self.transport.aclose()
        os.close(self._folder)


class Notebooks:
    """Passes requests for notebooks to those of a home, and others to `app`.

    Who may ask has been decided. `cookie` is the name of the session's cookie, which a notebook
    does not get. With `secure`, browsers reach this server by https.
    """

    def __init__(self, app: ASGIApp, home: Path, cookie: str, *, secure: bool = False) -> None:
        self._app = app
        self._home = home
        self._cookie = cookie
        self._secure = secure
        self._upstreams: dict[int, _Upstream] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = find_notebook(scope["path"])
        if id is None:
            await self._app(scope, receive, send)
            return
        headers = read_headers(scope)
        upstream = await self._find(id)
        host = last_header(headers, "host")
        if "service-worker" in headers:
            # It would answer for the pages of the notebook, without their policy.
            reply = refusal(403, "a notebook has no service worker")
        elif host.startswith("["):
            # A policy can name such an address no better than by 'self', which is all of det.
            reply = refusal(421, "a notebook is reached by a name or an IPv4 address of the server")
        elif upstream is None:
            reply = refusal(
                503, f"notebook {id} does not answer; det notebook list shows its state"
            )
        elif scope["type"] == "websocket":
            await self._pass_socket(id, upstream, scope, receive, send)
            return
        else:
            await self._pass_request(id, upstream, scope, receive, send)
            return
        await reply(scope, receive, send)

    async def _find(self, id: int) -> _Upstream | None:
        found = self._upstreams.get(id)
        if found is not None and found.is_there:
            return found
        for gone in [id for id, each in self._upstreams.items() if not each.is_there]:
            # A message may still be passed on.
            if not self._upstreams[gone].sockets:
                await self._upstreams.pop(gone).close()
        scratch = await run_in_threadpool(find_scratch, self._home, id)
        if scratch is None:
            return None
        # Another request may have found it meanwhile.
        if id not in self._upstreams:
            self._upstreams[id] = _Upstream(scratch)
        return self._upstreams[id]

    def _policies(self, scope: Scope, id: int) -> list[tuple[bytes, bytes]]:
        host = last_header(read_headers(scope), "host")
        policy = confine(host, base_url(id), secure=self._secure)
        return [
            (b"content-security-policy", policy.encode("latin1")),
            (b"x-frame-options", b"SAMEORIGIN"),
            (b"referrer-policy", b"same-origin"),
            # The page of det has another value. So a browser gives a window of one no handle to a
            # window of the other, although both have the same origin.
            (b"cross-origin-opener-policy", b"unsafe-none"),
        ]

    async def _pass_request(
        self, id: int, upstream: _Upstream, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = read_headers(scope)
        has_body = "content-length" in headers or "transfer-encoding" in headers
        request = httpx2.Request(
            scope["method"],
            "http://localhost",
            headers=self._passed_on(scope),
            content=_read_body(receive) if has_body else None,
            extensions={"timeout": _TIMEOUTS, "target": _target(scope)},
        )
        try:
            response = await upstream.transport.handle_async_request(request)
        except _GoneError:
            return
        except _SlowError:
            problem = f"the body did not come within {_BODY_SECONDS:.0f} s; send it again"
            await refusal(408, problem)(scope, receive, send)
            return
        except httpx2.TimeoutException:
            await refusal(504, f"notebook {id} does not answer in time")(scope, receive, send)
            return
        except (httpx2.TransportError, OSError):
            await refusal(502, f"notebook {id} does not answer; it may have ended")(
                scope, receive, send
            )
            return
        try:
            if _leaves(response.headers.get("location", ""), scope, id):
                reply = refusal(502, f"notebook {id} leads to an address outside of it")
                await reply(scope, receive, send)
                return
            start = {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": [*self._passed_back(response), *self._policies(scope, id)],
            }
            await _relay(start, response, receive, send)
        finally:
            await response.aclose()

    def _passed_on(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Return the headers for Jupyter: without those of this connection, and of det."""
        given = read_headers(scope)
        left_out = _NOT_UP | _named(given.get("connection", []))
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name.decode("latin1") not in left_out
            and not name.startswith((b"sec-websocket-", b"x-forwarded-"))
        ]
        pairs = [pair.strip() for text in given.get("cookie", []) for pair in text.split(";")]
        cookies = [pair for pair in pairs if pair.partition("=")[0].strip() != self._cookie]
        return [*kept, *([(b"cookie", "; ".join(cookies).encode("latin1"))] if cookies else [])]

    def _passed_back(self, response: httpx2.Response) -> Iterable[tuple[bytes, bytes]]:
        left_out = _NOT_DOWN | _named(response.headers.get_list("connection"))
        for name, value in response.headers.raw:
            lower = name.lower()
            of_det = lower == b"set-cookie" and (
                value.partition(b"=")[0].strip().decode("latin1") == self._cookie
            )
            if lower.decode("latin1") not in left_out and not of_det:
                yield lower, value

    async def _pass_socket(
        self, id: int, upstream: _Upstream, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if upstream.sockets >= MOST_SOCKETS:
            problem = f"notebook {id} has {MOST_SOCKETS} WebSockets; close some of its tabs"
            await refusal(503, problem)(scope, receive, send)
            return
        headers = read_headers(scope)
        upstream.sockets += 1
        try:
            connection = await unix_connect(
                upstream.path,
                f"ws://{last_header(headers, 'host')}{_target(scope).decode('latin1')}",
                origin=Origin(last_header(headers, "origin")) if "origin" in headers else None,
                subprotocols=[Subprotocol(each) for each in scope["subprotocols"]] or None,
                additional_headers=[
                    (name.decode("latin1"), value.decode("latin1"))
                    for name, value in self._passed_on(scope)
                    if name not in (b"host", b"origin")
                ],
                user_agent_header=None,
                compression=None,
                open_timeout=_OPEN_SECONDS,
                max_size=MOST_MESSAGE,
                # One message is held while the client takes another.
                max_queue=1,
                proxy=None,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            reply = refusal(
                status if status >= 400 else 502, f"notebook {id} refuses this WebSocket"
            )
            await reply(scope, receive, send)
        except (InvalidHandshake, OSError, TimeoutError):
            reply = refusal(502, f"notebook {id} does not answer; it may have ended")
            await reply(scope, receive, send)
        else:
            try:
                await _relay_messages(connection, receive, send)
            finally:
                # Also where this task is canceled.
                connection.transport.abort()
        finally:
            upstream.sockets -= 1


def confine(host: str, base: str, *, secure: bool) -> str:
    """Return a policy with which the scripts of a page reach only addresses below `base`.

    So they cannot ask the API of det for anything, although the browser would send the cookie.
    Scripts, styles and images may also come from other sites, by https.
    """
    own = f"http{'s' if secure else ''}://{host}{base}"
    socket = f"ws{'s' if secure else ''}://{host}{base}"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {own} 'unsafe-inline' 'unsafe-eval' blob: https:",
            f"style-src {own} 'unsafe-inline' data: blob: https:",
            *(f"{each}-src {own} data: blob: https:" for each in ("img", "font", "media")),
            f"connect-src {own} {socket} data: blob:",
            f"worker-src {own} blob:",
            f"frame-src {own} data: blob: https:",
            f"object-src {own} data: blob:",
            f"manifest-src {own}",
            f"form-action {own}",
            f"base-uri {own}",
            "frame-ancestors 'self'",
        )
    )


def _leaves(location: str, scope: Scope, id: int) -> bool:
    """Return whether a redirection leads to an address of this server outside of the notebook.

    A browser does not apply the path of a policy after a redirection. It reads a backslash as a
    slash, and drops control characters.
    """
    if not location:
        return False
    host = last_header(read_headers(scope), "host")
    here = f"http://{host}{scope['path']}"
    if not location.isprintable() or "\\" in location or location != location.strip():
        return True
    target = urlsplit(urljoin(here, location))
    path = unquote(target.path)
    return (target.netloc.lower() == host.lower() or not target.netloc) and (
        not path.startswith(base_url(id)) or ".." in path.split("/")
    )


def _named(values: Collection[str]) -> set[str]:
    """Return the names of headers that the header Connection lists."""
    return {name.strip().lower() for value in values for name in value.split(",")}


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"].partition(b"?")[0]
    return path + (b"?" + query if query else b"")


async def _read_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body of a request as it comes."""
    more = True
    while more:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            raise _SlowError from None
        if message["type"] == "http.disconnect":
            raise _GoneError
        more = message.get("more_body", False)
        if data := message.get("body", b""):
            yield data


async def _relay(
    start: dict[str, Any], response: httpx2.Response, receive: Receive, send: Send
) -> None:
    """Pass a response on as it comes, until the client leaves.

    Where the notebook fails in the middle, the response stays incomplete, which closes the
    connection.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await send(start)
        with suppress(httpx2.TransportError, OSError):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            async for chunk in response.stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        group.cancel_scope.cancel()


async def _relay_messages(connection: ClientConnection, receive: Receive, send: Send) -> None:
    """Pass messages on in both directions until one side leaves."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": connection.subprotocol})

    async def pass_up() -> None:
        try:
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                await connection.send(text if text is not None else message["bytes"])
            code = message.get("code") or _NORMAL
            await connection.close(_NORMAL if code in _UNSENDABLE else code)
        except ConnectionClosed:
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(pass_up)
        # The client may leave meanwhile.
        with suppress(OSError, RuntimeError):
            try:
                async for message in connection:
                    kind = "text" if isinstance(message, str) else "bytes"
                    await send({"type": "websocket.send", kind: message})
                code = connection.close_code or _NORMAL
            except ConnectionClosed as error:
                code = error.sent.code if error.sent else _LATER
            await send({"type": "websocket.close", "code": _LATER if code in _UNSENDABLE else code})
        group.cancel_scope.cancel()
