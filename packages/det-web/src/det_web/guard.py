"""Decides which requests are allowed, by host, origin, cookie, headers and size."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20
"""The longest body of a request. Configurations have some thousands of bytes."""
BODY_SECONDS = 30.0
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
        " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors"
        " 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
OTHER_SITE = "another site asked for this; open the page itself"
SIGN_IN = "this browser is not signed in; open the address that det ui printed"


COOKIE_SECONDS = 30 * 86400
"""How long a browser stays signed in."""


LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
NOTEBOOKS = "/notebooks/"
"""Below it, det server passes requests on to notebooks: `/notebooks/N/...`."""
_NOTEBOOK = re.compile(re.escape(NOTEBOOKS) + "([1-9][0-9]{0,17})(/.*)?", re.DOTALL)


class Keys:
    """The secrets that let in browsers and programs.

    A browser gets a signed cookie for a token that can be used once. A program sends the key.
    Cookies are signed with the key, so they remain valid for the next server of the same home,
    until they expire. `on_token` is called with the next token after one was used.
    """

    def __init__(self, on_token: Callable[[str], None], key: str | None = None) -> None:
        self._on_token = on_token
        self._key = key
        self._signing = (key or secrets.token_urlsafe(32)).encode()
        self.token = secrets.token_urlsafe(32)

    def cookie(self, token: str) -> str | None:
        """Return a cookie for the token, which is then invalid. None for a wrong token."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(32)
        self._on_token(self.token)
        expires = str(int(time.time()) + COOKIE_SECONDS)
        return f"{expires}.{self._sign(expires)}"

    def fits_program(self, authorization: str) -> bool:
        """Return whether the Authorization header of a program is valid."""
        return self._key is not None and hmac.compare_digest(
            authorization.encode(), f"Bearer {self._key}".encode()
        )

    def fits(self, cookie: str) -> bool:
        """Return whether a cookie is valid."""
        expires, _, signature = cookie.partition(".")
        signed = hmac.compare_digest(signature.encode(), self._sign(expires).encode())
        return signed and int(expires) > time.time()

    def _sign(self, expires: str) -> str:
        return hmac.digest(self._signing, b"cookie until " + expires.encode(), "sha256").hex()


class Guard:
    """Rejects requests that come from other sites, and passes the others to `app`.

    `hosts` are the names by which clients reach this server, without or with its port.
    `other_names` says how to allow another name. A form of this server may be sent to `forms`
    without the header X-Det, which a form cannot send, if the browser says where it comes from. So
    may requests for notebooks. Only these have WebSockets, where `sockets` allows any.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        port: int,
        *,
        other_names: str = "det ui --allow-host",
        forms: Collection[str] = (),
        sockets: bool = False,
    ) -> None:
        self._app = app
        self._hosts = {each for host in hosts for each in (host.lower(), f"{host.lower()}:{port}")}
        self._other_names = other_names
        self._forms = frozenset(forms)
        self._types = {"http", "websocket"} if sockets else {"http"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in self._types:
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A response may have its own value, as that of a page with a form.
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        status, problem = self._refused(scope)
        if status:
            await refusal(status, problem)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    def _refused(self, scope: Scope) -> tuple[int, str]:
        """Return the status and the reason for a request that is not allowed, else 0."""
        headers = read_headers(scope)
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return (
                421,
                (
                    f"this is not {', '.join(host) or 'a host without a name'};"
                    f" {self._other_names} names others"
                ),
            )
        if any(
            origin.lower().partition("://")[2] not in self._hosts
            for origin in headers.get("origin", [])
        ):
            return 403, OTHER_SITE
        path, reads = scope["path"], is_read(scope)
        is_socket, of_notebook = scope["type"] == "websocket", path.startswith(NOTEBOOKS)
        if is_socket and not of_notebook:
            return 404, "there is no WebSocket at this address"
        site = headers.get("sec-fetch-site", [])
        if not set(site) <= {"same-origin", "none"}:
            # A link to a view, in a mail or a wiki, may be followed: the page has no data until it
            # requests some. So may the address to sign in, which a local file redirects to: it has
            # the token.
            followed = headers.get("sec-fetch-mode") == ["navigate"] and headers.get(
                "sec-fetch-dest"
            ) == ["document"]
            if is_private(path) or not reads or not followed:
                return 403, OTHER_SITE
        # The browser sends the origin of a form or a WebSocket, which has been compared.
        is_form = (of_notebook or path in self._forms) and bool(
            headers.get("origin") or site == ["same-origin"]
        )
        # No other site can send the header Authorization either.
        is_program = last_header(headers, "authorization").startswith("Bearer ")
        if is_socket and not (is_form or is_program):
            return 403, "a WebSocket says by the header Origin which page opens it"
        if not (reads or is_form or is_program) and last_header(headers, "x-det") != "1":
            return (
                403,
                "what changes anything carries the header X-Det: 1, which no other site can send",
            )
        return 0, ""


class SignedIn:
    """Passes requests of a browser with a valid cookie, and of programs with the key, to `app`.

    Browsers send a cookie to every port of a host. So another user who listens on a port of this
    machine may obtain it. Therefore a cookie is accepted only from the user of this server.
    """

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Collection[str], port: int) -> None:
        self._app = app
        self._keys = keys
        self._cookie = cookie_name(port)
        # With other names there may be a proxy, which another user runs.
        self._is_local = set(hosts) <= LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, problem = self._refused(scope)
        if status:
            await refusal(status, problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> tuple[int, str]:
        headers = read_headers(scope)
        if not is_private(scope["path"]) or self._keys.fits_program(
            last_header(headers, "authorization")
        ):
            return 0, ""
        if not self._keys.fits(read_cookie(headers, self._cookie)):
            return 401, SIGN_IN
        if self._is_local and is_of_another_user(scope["client"], scope["server"]):
            return (
                403,
                "another user of this machine asked for this, with a cookie that is not theirs",
            )
        return 0, ""


class Bodies:
    """Reads the bodies of requests, and refuses those that are too long or too slow.

    `limits` are the most bytes for certain paths, instead of `MOST_BYTES`.
    """

    def __init__(self, app: ASGIApp, limits: Mapping[str, int] = MappingProxyType({})) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            most = self._limits.get(scope["path"], MOST_BYTES)
            status, problem, receive = await _read(scope, receive, most)
            if status:
                await refusal(status, problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_private(path: str) -> bool:
    """Return whether a path has data, and not only the page."""
    inside = _NOTEBOOK.fullmatch(path)
    return (
        path.startswith("/api/") or path == "/metrics" or (inside and inside[2]) not in (None, "/")
    )


def find_notebook(path: str) -> int | None:
    """Return the number of the notebook that a path is of, or None."""
    inside = _NOTEBOOK.fullmatch(path)
    return int(inside[1]) if inside else None


def is_read(scope: Scope) -> bool:
    """Return whether a request changes nothing by its method. A WebSocket begins with a GET."""
    return scope.get("method", "GET") in ("GET", "HEAD")


def refusal(status: int, problem: str) -> JSONResponse:
    """Return a reply that is an error. It closes the connection, as a body may be unread."""
    return JSONResponse({"error": problem}, status, {"connection": "close"})


def read_headers(scope: Scope) -> dict[str, list[str]]:
    """Return the values of each header of a request by its name in lower case."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin1"), []).append(value.decode("latin1"))
    return headers


def last_header(headers: dict[str, list[str]], name: str) -> str:
    """Return the last value of a header, or an empty text."""
    return headers.get(name, [""])[-1]


def read_cookie(headers: dict[str, list[str]], name: str) -> str:
    """Return the value of a cookie, or an empty text."""
    found: SimpleCookie = SimpleCookie()
    try:
        found.load("; ".join(headers.get("cookie", [])))
    except CookieError:
        return ""
    return found[name].value if name in found else ""


def cookie_name(port: int) -> str:
    """Return the name of the cookie.

    It has the port, as browsers send cookies to all ports of a host.
    """
    return f"det_{port}"


async def _read(scope: Scope, receive: Receive, most: int) -> tuple[int, str, Receive]:
    """Read a body, and return a `receive` that yields it again.

    Returns a status and a reason where it is longer than `most` bytes or takes longer than
    `BODY_SECONDS`.
    """
    too_long = 413, f"the body is longer than {most} bytes; send less"
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not length.isdigit() or int(length) > most:
        return *too_long, receive
    body, more = b"", True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message: dict[str, Any] = dict(await receive())
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    return *too_long, receive
    except TimeoutError:
        return 408, f"the body did not come within {BODY_SECONDS:.0f} s; send it again", receive
    whole = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return 0, "", again


_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


def is_of_another_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether a connection comes from another user of this machine, other than root.

    A connection that its sender has closed already counts as another user's. Returns False where
    the kernel does not list connections.
    """
    if not ip_address(client[0]).is_loopback:
        return False
    rows = [
        line.split()
        for table in _TABLES
        if table.exists()
        for line in table.read_text().splitlines()[1:]
    ]
    port = f":{server[1]:04X}"
    if not any(row[3] == _LISTENS and row[1].endswith(port) for row in rows):
        return False
    there, here = _written(client), _written(server)
    # A socket that no process has open any more has the inode 0, and root as its user.
    users = [int(row[7]) for row in rows if row[1:3] == [there, here] and row[9] != "0"]
    return not any(user in (0, os.getuid()) for user in users)


def _written(address: tuple[str, int]) -> str:
    """Return an address and a port as the kernel writes them, in words of the host's byte order."""
    packed = ip_address(address[0]).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
