"""Thousands of requests that nobody may send. None is answered, and nothing changes.

Most of them are sent in this process: Access and Guard see what a parser of HTTP has read, and a
socket would only make each slower. Some thousands go to a server on loopback, where the parser is
the server's, and lines, names and values of headers may be what no parser should accept.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sqlite3
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from starlette.types import ASGIApp
from tests.det_server.asgi import HOST, X_DET, Reply, ask
from tests.det_server.conftest import OF_ANN, OF_BOB, PASSWORD, fill, mark_of
from tests.det_server.test_remote import Running
from tests.det_server.test_rights import (
    ADMIN,
    EDIT,
    OPEN,
    OWN,
    OWNER,
    READ,
    RIGHTS,
    address,
    digest,
)

from det_server import Role, Users
from det_server.users import FILE

REFUSED = (400, 401, 403, 404, 405, 421)
HOSTS: tuple[tuple[bytes, ...], ...] = (
    *((), (b"",), (b"evil.example",), (b"det.example.evil.example",), (b"det.example:80",)),
    *((b"det.example.",), (b"ann@det.example",), (b"det.example\x00",), (b"d\xe9t.example",)),
    *((b"det.example", b"det.example"), (b"det.example, evil.example",), (b"127.0.0.1",)),
)
ORIGINS = (
    *(b"https://evil.example", b"null", b"", b"https://det.example.evil.example", b"det.example"),
    *(b"https://det.example:80", b"https://evil.example/https://det.example", b"file://"),
)
SITES = (b"cross-site", b"same-site", b"", b"same-origin, cross-site", b"Cross-Site")
METHODS = (
    *("TRACE", "CONNECT", "OPTIONS", "PROPFIND", "MKCOL", "get", "Delete", "", " ", "GET HTTP/1.1"),
    *("POST\r\n", "\x00", "DELETE\x00", "\xe9", "PATCH,DELETE"),
)
CLIMBS = ("..", "%2e%2e", ".%2e", "%252e%252e", "..%5c..", "..;", "%2e%2e%2f..", "..%00", "...")
TARGETS = (
    *("server.db", "index.db", "etc/passwd", "experiments/2/code/train.py", "%00server.db"),
    *("experiments/1/experiment.db", "checkpoints", "server.db%00.py", "root/.ssh/id_rsa"),
)
BELOW = (
    *("/api/v1/experiments/1/code/", "/api/v1/experiments/1/checkpoints/", "/api/v1/code/"),
    *("/api/v1/trials/1/media/", "/api/v1/trials/1/traces/", "/static/"),
)
Headers = list[tuple[bytes, bytes]]
Send = Callable[[str, str, Headers, bytes], Awaitable[Reply | None]]
"""Sends a request. None is for a connection that was closed without a reply."""


def forged_texts(users: Users, home: Path, random: Random) -> Iterator[str]:
    """Yield texts that are no session and no token, or are no more valid."""
    good = users.make_token("root").text
    revoked, expired = users.make_token("root"), users.make_token("root")
    users.revoke(revoked.id)
    session, old = (users.sign_in("root", PASSWORD) for _ in range(2))
    assert session is not None
    assert old is not None
    with sqlite3.connect(home / FILE) as database:
        sql = "UPDATE token SET expires = 1.0 WHERE id IN (?, ?)"
        database.execute(sql, (expired.id, old.id))
    database.close()
    users.sign_out(session.text)
    users.add("gone", Role.ADMIN, PASSWORD)
    of_removed = users.make_token("gone").text
    users.remove("gone")
    yield from (revoked.text, expired.text, session.text, old.text, of_removed)
    yield from ("", " ", good[:-1], f"{good}x", f"x{good}", good.swapcase(), good[::-1])
    yield from (hashlib.sha256(good.encode()).hexdigest(), "root", PASSWORD, "1", "' OR 1=1 --")
    yield from ("%", "*", "\xff" * 40, "\x00", "x" * 100_000)
    for _ in range(50):
        yield "".join(random.choices("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_", k=43))


def mutate(text: str, random: Random) -> str:
    """Return a token with some characters that are other ones, are twice there or are missing."""
    found = [*text]
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(found))
        others = (string.ascii_letters + string.digits).replace(found[at], "")
        found[at] = random.choice(("", found[at] * 2, random.choice(others)))
    changed = "".join(found)
    # A change may undo another.
    return changed if changed != text else mutate(text, random)


@dataclass(frozen=True)
class Forger:
    """Makes requests that are not to be answered, for a server at `host`.

    `valid` are the headers of an admin, `token` is the text of their token, and `texts` are not
    valid. `limited` are the headers of an editor and of a viewer, who do not see what bob has.
    """

    random: Random
    host: bytes
    cookie: bytes
    valid: Sequence[Headers]
    token: str
    texts: Sequence[str]
    limited: Sequence[Headers]

    @classmethod
    def of(cls, users: Users, home: Path, random: Random, host: bytes, port: int) -> Forger:
        """Make the tokens, and make what bob has private."""
        users.set_workspace(mark_of(OF_BOB), private=True)
        name = f"det_server_{port}=".encode()
        session, token = users.sign_in("root", PASSWORD), users.make_token("root").text
        assert session is not None
        return cls(
            random=random,
            host=host,
            cookie=name,
            valid=[
                [(b"cookie", name + session.text.encode())],
                [(b"authorization", f"Bearer {token}".encode())],
            ],
            token=token,
            texts=[*forged_texts(users, home, random)],
            limited=[
                [(b"authorization", f"Bearer {users.make_token(each).text}".encode())]
                for each in ("ann", "vera")
            ],
        )

    def forge(self) -> tuple[str, str, str, Headers]:
        """Return what is wrong with a request, its method, its path and its headers."""
        random = self.random
        endpoint = random.choice([each for each, right in RIGHTS.items() if right != OPEN])
        method, path = endpoint.split()
        path = address(path, random.choice((OF_ANN, OF_BOB, 99)))
        host = (b"host", self.host)
        headers = [host, X_DET, *random.choice(self.valid)]
        kinds = ("text", "mutant", "host", "origin", "site", "method", "x-det", "path", "foreign")
        kind = random.choice(kinds)
        if kind in ("text", "mutant"):
            text = mutate(self.token, random) if kind == "mutant" else random.choice(self.texts)
            headers = [host, X_DET, *self._credentials(text)]
        elif kind == "host":
            others = [each for each in HOSTS if each != (self.host.partition(b":")[0],)]
            headers = [(b"host", each) for each in random.choice(others)] + headers[1:]
        elif kind == "origin":
            headers.append((b"origin", random.choice(ORIGINS)))
        elif kind == "site":
            headers.append((b"sec-fetch-site", random.choice(SITES)))
        elif kind == "method":
            method = random.choice(METHODS)
        elif kind == "path":
            method, path = random.choice(("GET", "GET", "PUT")), self._climb()
        elif kind == "foreign":
            method, path, who = self._reach()
            headers = [host, X_DET, *who]
        else:
            # A form of another site carries the cookie, and not this header.
            method = method if method != "GET" else "POST"
            wrong = ((), ((b"x-det", b"0"),), ((b"x-det", b""),), ((b"x_det", b"1"),))
            headers = [host, *random.choice(wrong), *self.valid[0]]
        random.shuffle(headers)
        return kind, method, path, headers

    def _climb(self) -> str:
        random = self.random
        up = random.choice(("/", "%2f", "//")).join(random.choices(CLIMBS, k=random.randint(1, 8)))
        root = random.choice(("", "", "/", "%2f", "file:%2f%2f"))
        return f"{random.choice(BELOW)}{root}{up}/{random.choice(TARGETS)}"

    def _reach(self) -> tuple[str, str, Headers]:
        """Return a method, a path, and who may not use them: an editor, or a viewer."""
        who = self.random.choice((0, 1))
        rights = (ADMIN,) if who == 0 else (ADMIN, EDIT, OWN, OWNER)
        method, path = self.random.choice(
            [
                each
                for each, right in RIGHTS.items()
                if right in rights or ("{id}" in each and right in (READ, OWN, OWNER))
            ]
        ).split()
        id = self.random.choice((OF_BOB, 99, f"00{OF_BOB}"))
        return method, address(path, id), self.limited[who]

    def _credentials(self, text: str) -> Headers:
        """Return headers that carry a text that is not valid."""
        data = text.encode("latin1")
        return self.random.choice(
            (
                [],
                [(b"authorization", b"Bearer " + data)],
                [(b"cookie", self.cookie + data)],
                [(b"cookie", b"det_443=" + data), (b"authorization", b"Basic " + data)],
                [(b"authorization", data), (b"cookie", b"; ;=;\x7f;" + self.cookie + data)],
                [(b"x-forwarded-user", b"root"), (b"remote-user", b"root"), (b"x-token", data)],
            )
        )


async def refuse_all(send: Send, forger: Forger, home: Path, many: int) -> None:
    """Send `many` forged requests. None is answered, and nothing changes."""
    before, marks = digest(home), [mark_of(id).encode() for id in (OF_ANN, OF_BOB)]
    counts = Counter[tuple[str, int]]()
    for headers in (*forger.valid, *forger.limited):
        reply = await send("GET", "/api/v1/me", [(b"host", forger.host), *headers], b"")
        assert reply is not None
        assert reply.status == 200
    for _ in range(many):
        kind, method, path, headers = forger.forge()
        reply = await send(method, path, headers, b'{"config": "", "argv": []}')
        status, body = (reply.status, reply.body) if reply is not None else (0, b"")
        # No digest is a path.
        allowed = (*REFUSED, 409) if kind == "path" else REFUSED
        assert reply is None or status in allowed, (kind, method, path, headers, reply)
        secret = (*marks, b"SQLite format", b"root:x:", b"PRIVATE KEY")
        assert not any(each in body for each in secret), (kind, method, path, headers)
        counts[kind, status] += 1
    assert len({kind for kind, _ in counts}) == 9
    assert digest(home) == before
    for (kind, status), number in sorted(counts.items()):
        print(f"{kind:8} {status or 'closed':6} {number:7,}")


@pytest.mark.sample
@pytest.mark.parametrize("many", [3000, 100_000])
@pytest.mark.timeout(7200)
def test_no_forged_request_is_answered(app: ASGIApp, users: Users, home: Path, many: int) -> None:
    forger = Forger.of(users, home, Random(0), HOST[1], 443)

    async def send(method: str, path: str, headers: Headers, body: bytes) -> Reply:
        return await ask(app, method, path, headers, body)

    asyncio.run(refuse_all(send, forger, home, many))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.process
def test_no_forged_request_is_answered_at_a_socket(tmp_path: Path) -> None:
    users = fill(tmp_path / "home")
    server = Running(tmp_path / "home")
    try:
        host = f"127.0.0.1:{server.port}".encode()
        forger = Forger.of(users, server.home, Random(1), host, server.port)

        async def send(method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
            return exchange(server.port, method, path, headers, body)

        asyncio.run(refuse_all(send, forger, server.home, 3000))
    finally:
        server.kill()


def exchange(port: int, method: str, path: str, headers: Headers, body: bytes) -> Reply | None:
    """Send bytes over a connection of their own, and return what comes, or None for nothing."""
    length = (b"content-length", str(len(body)).encode())
    lines = [name + b": " + value for name, value in (*headers, length, (b"connection", b"close"))]
    first = f"{method} {path} HTTP/1.1".encode("latin1")
    received = b""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        try:
            connection.sendall(b"\r\n".join((first, *lines, b"", body)))
            while data := connection.recv(1 << 16):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            # What it does not read is thrown away.
            pass
    head, _, rest = received.partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]), {}, rest) if head else None
