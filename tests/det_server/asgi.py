"""Sends requests to an application in this process, byte for byte as they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp

from det_server import Users

HOST, X_DET = (b"host", b"det.example"), (b"x-det", b"1")


def sign_in(users: Users, name: str) -> list[tuple[bytes, bytes]]:
    """Return the header with a new API token of a user."""
    return [(b"authorization", f"Bearer {users.make_token(name).text}".encode())]


class Reply(NamedTuple):
    """A reply. An error that was raised in the application is raised where it was asked."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes


async def ask(
    app: ASGIApp,
    method: str,
    target: str,
    headers: Sequence[tuple[bytes, bytes]] = (HOST,),
    body: bytes = b"",
    *,
    parts: int | None = None,
) -> Reply:
    """Send a request, and return the reply. The client leaves after so many `parts` of it."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        # As uvicorn does.
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [*headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 443),
    }
    asked = [{"type": "http.request", "body": body, "more_body": False}]
    left, got = asyncio.Event(), list[dict[str, Any]]()

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        got.append(message)
        if parts is not None and len(got) > parts:
            left.set()

    await asyncio.wait_for(app(scope, receive, send), 30)
    return Reply(
        got[0]["status"], dict(got[0]["headers"]), b"".join(m.get("body", b"") for m in got[1:])
    )
