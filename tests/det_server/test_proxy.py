"""What a server passes on to a notebook and back, over real sockets. A small server answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from tests.det_server.notebook import add_notebook
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from det_node.notebook import SOCKET
from det_server import Users, access, create_app
from det_server.notebooks import MOST_MESSAGE
from det_server.submit import routes
from det_web.serve import listening, serve

pytestmark = pytest.mark.process
MIB = 1 << 20
LIMIT_SECONDS = 60


class Jupyter:
    """The server behind the proxy. It notes what arrives."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.received = 0
        self.held = threading.Event()
        self.left = threading.Event()

    async def show(self, request: Request) -> Response:
        self.seen.append(request)
        reply = Response(json.dumps({"path": request.url.path, "query": request.url.query}))
        reply.headers["clear-site-data"] = '"*"'
        reply.headers["connection"] = "x-of-hop"
        reply.headers["x-of-hop"] = "1"
        reply.headers["x-frame-options"] = "ALLOWALL"
        reply.set_cookie("_xsrf", "1", path="/notebooks/4/")
        reply.set_cookie(request.query_params.get("cookie", "other"), "2")
        return reply

    async def take(self, request: Request) -> Response:
        async for chunk in request.stream():
            self.received += len(chunk)
        return Response(str(self.received))

    async def give(self, request: Request) -> Response:
        async def parts() -> Any:
            try:
                yield b"first"
                while not self.held.is_set():
                    await asyncio.sleep(0.01)
                for _ in range(int(request.query_params["mib"])):
                    yield bytes(MIB)
            finally:
                self.left.set()

        return StreamingResponse(parts())

    async def lead(self, request: Request) -> Response:
        return RedirectResponse(request.query_params["to"], 307)

    async def echo(self, websocket: WebSocket) -> None:
        self.seen.append(websocket)  # type: ignore[arg-type]
        await websocket.accept("v1.kernel")
        while (message := await websocket.receive())["type"] == "websocket.receive":
            if message.get("text") == "end":
                await websocket.close(4321)
            elif message.get("text") is not None:
                await websocket.send_text(message["text"])
            else:
                await websocket.send_bytes(message["bytes"])
        self.left.set()

    async def refuse(self, websocket: WebSocket) -> None:
        await websocket.close()

    def app(self, base: str) -> ASGIApp:
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]
        inside = [
            Route(f"{base}take", self.take, methods=methods),
            Route(f"{base}give", self.give),
            Route(f"{base}lead", self.lead),
            WebSocketRoute(f"{base}echo", self.echo),
            WebSocketRoute(f"{base}refuse", self.refuse),
            Route("/{rest:path}", self.show, methods=methods),
        ]
        return Starlette(routes=inside)


@contextmanager
def running(server: uvicorn.Server, sock: socket.socket) -> Iterator[None]:
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(LIMIT_SECONDS)


class Setup:
    """A server with a notebook of ann, and what is behind it."""

    def __init__(self, home: Path, users: Users) -> None:
        self.jupyter = Jupyter()
        self.users = users
        self.id, self.scratch = add_notebook(home, users)
        self.base = f"/notebooks/{self.id}/"
        self.token = users.make_token("ann").text
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def cookie(self) -> dict[str, str]:
        return {"cookie": f"_xsrf=2|a; det_server_{self.port}={self.token}"}

    def client(self) -> httpx2.Client:
        address = f"http://{self.host}{self.base}"
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx2.Client(base_url=address, headers=headers, timeout=LIMIT_SECONDS)

    def connect(self, path: str, **headers: str) -> Any:
        return connect(
            f"ws://{self.host}{self.base}{path}",
            additional_headers=headers or {**self.cookie, "origin": f"http://{self.host}"},
            subprotocols=["v0.kernel", "v1.kernel"],  # type: ignore[list-item]
            max_size=None,
        )


@pytest.fixture
def setup(
    home: Path, users: Users, monkeypatch: pytest.MonkeyPatch, processes: object
) -> Iterator[Setup]:
    made = Setup(home, users)
    behind = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(made.scratch)
    behind.bind(SOCKET)
    behind.listen()
    config = uvicorn.Config(
        made.jupyter.app(made.base), log_level="error", lifespan="off", ws_max_size=1 << 30
    )
    sock = listening("127.0.0.1", 0)
    made.port = sock.getsockname()[1]
    app = create_app(
        home, users, hosts={"127.0.0.1", "[::1]"}, port=made.port, routes=routes(home, {})
    )
    # As det server start does, in a thread.
    server = running_server(app, sock)
    with running(uvicorn.Server(config), behind), server:
        yield made


@contextmanager
def running_server(app: ASGIApp, sock: socket.socket) -> Iterator[None]:
    stop: list[uvicorn.Server] = []
    real = uvicorn.Server.capture_signals

    @contextmanager
    def no_signals(self: uvicorn.Server) -> Iterator[None]:
        stop.append(self)
        yield

    uvicorn.Server.capture_signals = no_signals  # type: ignore[method-assign]
    thread = threading.Thread(target=serve, args=(app, sock), kwargs={"most_message": MOST_MESSAGE})
    thread.start()
    try:
        yield
    finally:
        for each in stop:
            each.should_exit = True
        thread.join(LIMIT_SECONDS)
        uvicorn.Server.capture_signals = real  # type: ignore[method-assign]


def test_a_request_reaches_the_notebook_as_it_was(setup: Setup) -> None:
    with setup.client() as client:
        reply = client.get(
            "a%2Fb%20c/../d?x=1%262&y=",
            headers={**setup.cookie, "connection": "x-secret", "x-secret": "1", "x-kept": "2"},
        )
    assert reply.status_code == 200, reply.text
    (request,) = setup.jupyter.seen
    assert request.headers["host"] == setup.host
    assert request.headers["x-kept"] == "2"
    assert request.url.query == "x=1%262&y="
    assert "x-secret" not in request.headers
    # The session is not for the code of the notebook.
    assert "authorization" not in request.headers
    assert request.headers["cookie"] == "_xsrf=2|a"


def test_a_reply_is_confined_to_the_notebook(setup: Setup) -> None:
    with setup.client() as client:
        reply = client.get(f"lab?cookie=det_server_{setup.port}")
    assert (
        f"connect-src http://{setup.host}{setup.base} ws://{setup.host}{setup.base}"
        in (reply.headers["content-security-policy"])
    )
    assert reply.headers["x-frame-options"] == "SAMEORIGIN"
    assert reply.headers["cross-origin-opener-policy"] == "unsafe-none"
    assert not {"clear-site-data", "x-of-hop"} & reply.headers.keys()
    # It cannot sign anybody in or out.
    assert [each.partition("=")[0] for each in reply.headers.get_list("set-cookie")] == ["_xsrf"]
    assert len(reply.headers.get_list("date")) == 1


def test_a_redirection_out_of_the_notebook_is_refused(setup: Setup) -> None:
    with setup.client() as client:
        assert client.get("lead?to=lab").headers["location"] == "lab"
        reply = client.get("lead?to=/api/v1/me")
    assert (reply.status_code, "location" in reply.headers) == (502, False)


def test_bodies_are_passed_on_as_they_come(setup: Setup) -> None:
    """64 MiB up and down, while the server holds little of it."""
    mib = 64

    def parts() -> Iterator[bytes]:
        for n in range(mib):
            if n == mib // 2:
                # The first half arrives before the second is sent.
                deadline = time.monotonic() + LIMIT_SECONDS
                while setup.jupyter.received < (n - 8) * MIB:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield bytes(MIB)

    with setup.client() as client:
        assert client.put("take", content=parts()).text == str(mib * MIB)
        length = {"content-length": str(3 * MIB)}
        assert client.post("take", content=bytes(3 * MIB), headers=length).status_code == 200
        with client.stream("GET", f"give?mib={mib}") as reply:
            got = reply.iter_raw()
            assert next(got) == b"first"
            setup.jupyter.held.set()
            assert sum(map(len, got)) == mib * MIB
        assert client.head("x").content == b""


def test_a_client_that_leaves_ends_what_it_asked_for(setup: Setup) -> None:
    with setup.client() as client, client.stream("GET", "give?mib=1") as reply:
        assert next(reply.iter_raw()) == b"first"
    assert setup.jupyter.left.wait(LIMIT_SECONDS)


def test_messages_go_both_ways(setup: Setup) -> None:
    with setup.connect("echo") as kernel:
        assert kernel.subprotocol == "v1.kernel"
        for message in ("text", b"bytes", "", bytes(4 * MIB)):
            kernel.send(message)
            assert kernel.recv(LIMIT_SECONDS) == message
        (request,) = setup.jupyter.seen
        assert request.headers["origin"] == f"http://{setup.host}"
        assert request.headers["cookie"] == "_xsrf=2|a"
        kernel.send("end")
        with pytest.raises(ConnectionClosed) as closed:
            kernel.recv(LIMIT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4321


def test_a_closed_websocket_is_closed_behind(setup: Setup) -> None:
    with setup.connect("echo", authorization=f"Bearer {setup.token}") as kernel:
        kernel.send("x")
        kernel.recv(LIMIT_SECONDS)
    assert setup.jupyter.left.wait(LIMIT_SECONDS)


def test_a_message_that_is_too_long_closes_a_websocket(setup: Setup) -> None:
    with setup.connect("echo") as kernel:
        # It may be closed before all of it is sent.
        with contextlib.suppress(ConnectionClosed):
            kernel.send(bytes(MOST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            kernel.recv(LIMIT_SECONDS)
    # The connection may break before the reason has come.
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


def test_a_websocket_that_is_refused_behind_is_refused(setup: Setup) -> None:
    with pytest.raises(InvalidStatus) as refusal, setup.connect("refuse"):
        pass
    assert refusal.value.response.status_code == 403


def test_a_websocket_ends_with_its_session(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "VALID_SECONDS", 0.05)
    with setup.connect("echo") as kernel:
        kernel.send("x")
        assert kernel.recv(LIMIT_SECONDS) == "x"
        setup.users.sign_out(setup.token)
        with pytest.raises(ConnectionClosed) as closed:
            kernel.recv(LIMIT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert setup.jupyter.left.wait(LIMIT_SECONDS)


def test_a_notebook_that_has_ended_is_said(setup: Setup) -> None:
    with setup.client() as client:
        os.rename(SOCKET, "away")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(SOCKET)
        reply = client.get("lab")
        assert (reply.status_code, "may have ended" in reply.text) == (502, True)
        os.unlink(SOCKET)
        assert client.get("lab").status_code == 503
    with pytest.raises(InvalidStatus) as refusal, setup.connect("echo"):
        pass
    assert refusal.value.response.status_code == 503


def test_an_address_that_no_policy_can_name_is_refused(setup: Setup) -> None:
    with setup.client() as client:
        reply = client.get("lab", headers={"host": f"[::1]:{setup.port}"})
    assert (reply.status_code, "IPv4 address" in reply.text) == (421, True)
