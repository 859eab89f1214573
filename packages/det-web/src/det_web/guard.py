"""Who may ask: before anything is routed, a request's host, origin, cookie, header and size are looked at."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 20
"""Of a request's body; configurations have some thousands."""
BODY_SECONDS = 30.0
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SIGN_IN = "this browser is not signed in; open the address that det ui printed"


class Keys:
    """What lets somebody in: a token, good for one browser, for which it gets a cookie; a key for programs.

    `said` is called with the next token whenever one was used.
    """

    def __init__(self, said: Callable[[str], None], key: str | None = None) -> None:
        self._said = said
        self._key = key
        self._cookie = secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(32)

    def cookie(self, token: str) -> str | None:
        """Return the cookie for a token, which is good no longer; None for another."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(32)
        self._said(self.token)
        return self._cookie

    def fits(self, cookie: str, authorization: str) -> bool:
        """Tell whether a cookie, or the header of a program, is right."""
        by_key = self._key is not None and hmac.compare_digest(authorization.encode(), f"Bearer {self._key}".encode())
        return hmac.compare_digest(cookie.encode(), self._cookie.encode()) or by_key


class Guard:
    """Answers what may not be asked, and gives the rest to `app`; `hosts` are the names that this server goes by."""

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str], port: int) -> None:
        self._app = app
        self._keys = keys
        self._cookie = cookie_name(port)
        self._hosts = {each for host in hosts for each in (host.lower(), f"{host.lower()}:{port}")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        status, said = self._refused(scope)
        if not status and scope["method"] not in ("GET", "HEAD"):
            status, said, receive = await _read(scope, receive)
        if status:
            await JSONResponse({"error": said}, status, {"connection": "close"})(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    def _refused(self, scope: Scope) -> tuple[int, str]:
        """Return the status and the sentence for a request that may not be; 0 for one that may."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin1"), []).append(value.decode("latin1"))
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return 421, f"this is not {', '.join(host) or 'a host without a name'}; det ui --allow-host names others"
        if any(origin.lower().partition("://")[2] not in self._hosts for origin in headers.get("origin", [])):
            return 403, "another site asked for this; open the page itself"
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        private = path.startswith("/api/") or path == "/metrics"
        if not set(headers.get("sec-fetch-site", [])) <= {"same-origin", "none"}:
            # A link to a view, in a mail or a wiki, is followed: what it opens holds nothing before the page has asked.
            followed = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
            if private or not reads or not followed or path == "/login":
                return 403, "another site asked for this; open the page itself"
        if private and not self._keys.fits(self._given(headers.get("cookie", [])), _last(headers, "authorization")):
            return 401, SIGN_IN
        if not reads and _last(headers, "x-det") != "1":
            return 403, "what changes anything carries the header X-Det: 1, which no other site can send"
        return 0, ""

    def _given(self, cookies: list[str]) -> str:
        found: SimpleCookie = SimpleCookie()
        try:
            found.load("; ".join(cookies))
        except CookieError:
            return ""
        return found[self._cookie].value if self._cookie in found else ""


def cookie_name(port: int) -> str:
    """Return the name of the cookie: browsers give cookies to all ports of a host."""
    return f"det_{port}"


def _last(headers: dict[str, list[str]], name: str) -> str:
    return headers.get(name, [""])[-1]


async def _read(scope: Scope, receive: Receive) -> tuple[int, str, Receive]:
    """Read a body that is not too long and does not take too long; return what gives it once more."""
    too_long = 413, f"the body is longer than {MOST_BYTES} bytes; send less"
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not length.isdigit() or int(length) > MOST_BYTES:
        return *too_long, receive
    body, more = b"", True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message: dict[str, Any] = dict(await receive())
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MOST_BYTES:
                    return *too_long, receive
    except TimeoutError:
        return 408, f"the body did not come within {BODY_SECONDS:.0f} s; send it again", receive
    whole = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return 0, "", again
