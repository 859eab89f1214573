"""Shells of users on other machines: the two streams of a terminal, and who may use it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp
from tests.det_server.asgi import HOST, X_DET, Reply, ask, sign_in
from tests.det_server.conftest import CONFIG, OF_ANN

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import Store
from det_node.task import task_words
from det_server import Role, Users, terminals

KEY = "a" * 32


class Shell:
    """A shell of ann, whose number is `id`. This test is its `program`."""

    def __init__(self, home: Path, users: Users) -> None:
        words = " ".join(task_words("shell", ("sh",), directory=None))
        with Store(home) as store:
            config = to_json(load(CONFIG).config)
            made = store.experiments.create(name="sh", config=config, metric="", entrypoint=words)
        self.id = made.id
        users.note_owner("ann", made.id, made.created)
        self.program, self._other = socket.socketpair()
        self.program.settimeout(10)

    def connect(self, place: Path) -> socket.socket | None:
        """Return the connection to the program, once, as its server listens no longer."""
        other, self._other = self._other, None
        return other


MakeShell = Callable[[], Shell]


@pytest.fixture
def make_shell(home: Path, users: Users, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShell]:
    made: dict[Path, Shell] = {}
    monkeypatch.setattr(terminals, "find_terminal", lambda store, id: home / str(id))
    monkeypatch.setattr(terminals, "connect_terminal", lambda place: made[place].connect(place))

    def make() -> Shell:
        shell = Shell(home, users)
        made[home / str(shell.id)] = shell
        return shell

    yield make
    for each in made.values():
        each.program.close()


@pytest.fixture
def shell(make_shell: MakeShell) -> Shell:
    return make_shell()


class Client:
    """Requests of one user about the terminal of an experiment, with one key."""

    def __init__(self, app: ASGIApp, users: Users, name: str, id: int, key: str = KEY) -> None:
        self._app, self._key = app, key
        self._path = f"/api/v1/experiments/{id}/terminal"
        self._headers = [HOST, X_DET, *sign_in(users, name)]

    async def open(self) -> Reply:
        body = json.dumps({"key": self._key}).encode()
        return await ask(self._app, "POST", self._path, self._headers, body)

    async def read(self, after: object) -> Reply:
        return await self._send("GET", f"&after={after}")

    async def write(self, at: object, body: bytes) -> Reply:
        return await self._send("PUT", f"&at={at}", body)

    async def close(self) -> Reply:
        return await self._send("DELETE", "")

    async def _send(self, method: str, query: str, body: bytes = b"") -> Reply:
        target = f"{self._path}?key={self._key}{query}"
        return await ask(self._app, method, target, self._headers, body)


def run(steps: Callable[[], Awaitable[None]]) -> None:
    """Run the steps of a test, with a limit of time."""

    async def limited() -> None:
        await asyncio.wait_for(steps(), 60)

    asyncio.run(limited())


def test_requests_about_a_terminal_may_be_repeated(
    app: ASGIApp, users: Users, shell: Shell
) -> None:
    """As after a cut connection, when the client knows no reply to its last ones."""

    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        for _ in range(2):
            assert json.loads((await ann.open()).body) == {"open": True, "waits": False}
        program = shell.program
        for at in (0, 0, 2):
            reply = await ann.write(at, b"typed"[at:])
            assert json.loads(reply.body) == {"at": 5}, reply
        assert program.recv(100) == b"typed"
        program.sendall(b"written")
        for after, output in ((0, b"written"), (0, b"written"), (3, b"tten")):
            assert (await ann.read(after)).body == output
        # What the client has is not kept.
        assert [(await ann.read(after)).status for after in (0, 8)] == [409, 409]
        assert (await ann.write(9, b"x")).status == 409
        program.sendall(b" and ends")
        program.close()
        assert (await ann.read(7)).body == b" and ends"
        assert (await ann.read(16)).status == 410

    run(steps)


def test_output_waits_for_a_slow_reader(app: ASGIApp, users: Users, shell: Shell) -> None:
    """The program waits, and the server keeps little of what it has written."""

    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        await ann.open()
        program = shell.program
        program.setblocking(False)
        sent, quiet = 0, 0
        while quiet < 20:
            try:
                sent += program.send(b"x" * 4096)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                await asyncio.sleep(0.02)
        # Besides, a socket holds some.
        assert terminals._KEPT <= sent < terminals._KEPT + (1 << 20)
        program.close()
        got = 0
        while (reply := await ann.read(got)).status == 200:
            assert 0 < len(reply.body) <= 1 << 16
            got += len(reply.body)
        assert (got, reply.status) == (sent, 410)

    run(steps)


def test_a_program_that_takes_nothing_holds_up_what_is_typed(
    app: ASGIApp, users: Users, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "_INPUT_SECONDS", 0.2)

    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        await ann.open()
        program = shell.program
        at = before = 0
        while at == before or at - before == terminals.MOST_TYPED:
            before = at
            at = json.loads((await ann.write(at, b"x" * terminals.MOST_TYPED)).body)["at"]
            if at == before:
                break
        assert (await ann.write(at, b"x" * (terminals.MOST_TYPED + 1))).status == 413
        taken = 0
        while taken < at:
            taken += len(program.recv(1 << 16))
        assert json.loads((await ann.write(at, b"rest")).body) == {"at": at + 4}
        assert program.recv(100) == b"rest"
        program.close()

    run(steps)


def test_a_client_that_is_silent_for_long_loses_its_shell(
    app: ASGIApp, users: Users, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "GONE_SECONDS", 1.0)
    monkeypatch.setattr(terminals, "_OUTPUT_SECONDS", 0.1)

    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        await ann.open()
        program = shell.program
        program.setblocking(False)
        loop = asyncio.get_running_loop()
        ended = asyncio.create_task(loop.sock_recv(program, 1))
        began = time.monotonic()
        # As long as it asks, the shell goes on.
        while time.monotonic() - began < 2.0:
            assert (await ann.read(0)).status == 200
            assert not ended.done()
        assert await ended == b""
        assert (await ann.read(0)).status == 410
        reply = await ann.open()
        assert (reply.status, b"has lost its terminal" in reply.body) == (410, True)

    run(steps)


def test_only_the_owner_uses_the_terminal_of_a_shell(
    app: ASGIApp, users: Users, shell: Shell
) -> None:
    """Not even an admin, who has its key by chance. The owner has one client at once."""

    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        assert (await ann.open()).status == 200
        program = shell.program
        program.sendall(b"secret")
        for name in ("root", "bob", "vera"):
            other = Client(app, users, name, shell.id)
            for asked in (other.open(), other.read(0), other.write(0, b"x"), other.close()):
                reply = await asked
                assert (reply.status, b"secret" in reply.body) == (403, False), (name, reply)
        second = Client(app, users, "ann", shell.id, key="b" * 32)
        assert b"another terminal is connected" in (await second.open()).body
        for asked in (second.read(0), second.write(0, b"x"), second.close()):
            assert (await asked).status == 410
        assert (await ann.read(0)).body == b"secret"
        assert (await ann.close()).status == 204
        assert program.recv(100) == b""
        users.change("ann", role=Role.VIEWER)
        assert [(await each).status for each in (ann.read(0), ann.open())] == [403, 403]

    run(steps)


def test_bad_requests_about_a_terminal_are_refused(
    app: ASGIApp, users: Users, shell: Shell
) -> None:
    async def steps() -> None:
        ann = Client(app, users, "ann", shell.id)
        assert (await ann.read(0)).status == 410
        assert (await Client(app, users, "ann", shell.id, key="short").open()).status == 400
        no_shell = await Client(app, users, "ann", OF_ANN).open()
        assert (no_shell.status, b"is no shell" in no_shell.body) == (409, True)
        await ann.open()
        for position in ("", "-1", "x", "1e3", "9" * 30, "9" * 18, "%D9%A3"):
            got = [(await ann.read(position)).status, (await ann.write(position, b"")).status]
            assert got[0] == got[1] == (409 if len(position) == 18 else 400), position

    run(steps)


def test_a_user_has_a_limited_number_of_shells_at_once(
    app: ASGIApp, users: Users, make_shell: MakeShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminals, "_AT_ONCE_OF_ONE", 1)
    first, second = make_shell(), make_shell()

    async def steps() -> None:
        clients = [Client(app, users, "ann", each.id) for each in (first, second)]
        assert [(await each.open()).status for each in clients] == [200, 503]
        first.program.close()
        while (await clients[0].read(0)).status != 410:
            pass
        assert (await clients[1].open()).status == 200

    run(steps)
