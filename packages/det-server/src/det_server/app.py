"""The ASGI application of det server: det-web's page and API behind a sign-in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from det_core.support.installation import own_version
from det_driver.accounts import runs_as_users
from det_driver.provenance import set_user
from det_driver.recording import MOST_BYTES, PATH
from det_driver.store import Store
from det_web.app import make_router, make_routes
from det_web.endpoints import NO_STORE, ROOT, failed
from det_web.guard import Bodies, Guard, read_headers
from det_web.openapi import describe, takes

from .access import SESSION, SIGN_IN, Access, credentials
from .limits import Attempts
from .notebooks import missing
from .people import People
from .users import DAY, SESSION_DAYS, Issued, User, Users

_SIGN_IN_BYTES = 16 << 10
"""The longest body of a sign-in, which anybody may send. Escaped, a password has 12 KiB at most."""
_WRONG = "the name or the password is wrong"
# With `no-referrer`, a browser would not say that a form comes from this page.
_FORM_HEADERS = {
    **NO_STORE,
    "referrer-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>det: sign in</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css">
</head>
<body>
<main>
<h1>det</h1>
{body}
<p>{rights}</p>
</main>
</body>
</html>
"""
_FORM = """<form method="post" action="{action}">
<input type="hidden" name="next" value="{next}">
<p role="alert">{problem}</p>
<p><label>Name <input name="name" autocomplete="username" required autofocus></label></p>
<p><label>Password
<input name="password" type="password" autocomplete="current-password" required></label></p>
<p><button>Sign in</button></p>
</form>"""
_SIGNED_IN = """<p>You are signed in as {name} ({role}). <a href="/">Experiments</a></p>
<form method="post" action="{action}">
<p><button name="out" value="1">Sign out</button></p>
</form>"""


_OF_SERVER = (
    "Experiments run with the rights of the account that this server runs as. So everybody who may"
    " start one is trusted with these rights."
)
_OF_USERS = (
    "Experiments run with the rights of the account of their owner on this server's machine."
)


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a sign-in."""

    name: str
    password: str


_decode = msgspec.json.Decoder(SignIn).decode


class Session(msgspec.Struct):
    """A new session: who signed in, the token for programs, and when it expires (UTC seconds)."""

    name: str
    role: str
    token: str
    expires: float


class Me(msgspec.Struct):
    """Who sent the request, and the version of the server."""

    name: str
    role: str
    version: str


class _Session:
    """The endpoints and the page to sign in and out."""

    def __init__(
        self, users: Users, cookie: str, rights: str, *, secure: bool, behind_proxy: bool
    ) -> None:
        self._rights = rights
        self._users = users
        self._cookie = cookie
        self._secure = secure
        self._behind_proxy = behind_proxy
        self._attempts = Attempts()
        # Hashing takes a processor for a while. Threads of the API remain free.
        self._hashing = CapacityLimiter(1)

    def routes(self) -> list[Route]:
        """Return the routes of the API and of the page."""
        return [
            Route(SESSION, self.begin, methods=["POST"]),
            Route(SESSION, self.end, methods=["DELETE"]),
            Route(f"{ROOT}/me", self.me),
            Route(SIGN_IN, self.page),
            Route(SIGN_IN, self.submit, methods=["POST"]),
        ]

    @takes(body=SignIn, response=Session, status=201)
    async def begin(self, request: Request) -> Response:
        """Sign in with a name and a password."""
        try:
            given = _decode(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return failed(400, str(error))
        issued, wait = await self._sign_in(request, given)
        if issued is None:
            return self._refusal(wait)
        user = self._users.find(issued.text)
        if user is None:
            return failed(401, _WRONG)
        body = msgspec.json.encode(Session(user.name, user.role, issued.text, issued.expires))
        reply = Response(body, 201, NO_STORE, "application/json")
        self._set_cookie(reply, issued)
        return reply

    @takes(status=204)
    async def end(self, request: Request) -> Response:
        """Sign out: the session or token of the request becomes invalid."""
        reply = Response(status_code=204, headers=NO_STORE)
        self._end(request, reply)
        return reply

    @takes(response=Me)
    async def me(self, request: Request) -> Response:
        """Return who sent the request."""
        user: User = request.state.user
        return JSONResponse(
            msgspec.to_builtins(Me(user.name, user.role, own_version())), headers=NO_STORE
        )

    async def page(self, request: Request) -> Response:
        """Show the page to sign in, or to sign out."""
        user: User | None = request.state.user
        if user is not None:
            body = _SIGNED_IN.format(name=escape(user.name), role=user.role, action=SIGN_IN)
            page = _PAGE.format(body=body, rights=self._rights)
            return HTMLResponse(page, headers=_FORM_HEADERS)
        return self._form(200, "", request.query_params.get("next", "/"))

    async def submit(self, request: Request) -> Response:
        """Sign in by the form, and lead to the page that was asked for."""
        try:
            fields = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=8)
        except ValueError:
            return self._form(400, "Give a name and a password.", "/")
        if "out" in fields:
            reply: Response = RedirectResponse(SIGN_IN, 303, NO_STORE)
            self._end(request, reply)
            return reply
        name, password, leads_to = (
            fields.get(each, [""])[0] for each in ("name", "password", "next")
        )
        issued, wait = await self._sign_in(request, SignIn(name, password))
        if issued is None:
            refused = self._refusal(wait)
            problem = f"{_WRONG}." if not wait else f"There were too many attempts; wait {wait} s."
            return self._form(refused.status_code, problem.capitalize(), leads_to)
        reply = RedirectResponse(_local(leads_to), 303, NO_STORE)
        self._set_cookie(reply, issued)
        return reply

    async def _sign_in(self, request: Request, given: SignIn) -> tuple[Issued | None, int]:
        """Return a session, or None and the seconds to wait, which are 0 for a wrong password."""
        address = self._address(request)
        if wait := self._attempts.begin(given.name, address):
            return None, int(wait) + 1
        issued = await anyio.to_thread.run_sync(
            self._users.sign_in, given.name, given.password, limiter=self._hashing
        )
        if issued is not None:
            self._attempts.succeed(given.name, address)
        return issued, 0

    def _form(self, status: int, problem: str, leads_to: str) -> Response:
        body = _FORM.format(action=SIGN_IN, next=escape(_local(leads_to)), problem=escape(problem))
        page = _PAGE.format(body=body, rights=self._rights)
        return HTMLResponse(page, status, _FORM_HEADERS)

    def _refusal(self, wait: int) -> Response:
        if not wait:
            return failed(401, _WRONG)
        reply = failed(429, f"there were too many attempts to sign in; wait {wait} s")
        reply.headers["retry-after"] = str(wait)
        return reply

    def _address(self, request: Request) -> str:
        # The proxy adds the address of its client to what the client may have invented.
        forwarded = read_headers(request.scope).get("x-forwarded-for", [""])[-1]
        if self._behind_proxy and forwarded:
            return forwarded.rpartition(",")[2].strip()
        return request.client.host if request.client else ""

    def _set_cookie(self, reply: Response, issued: Issued) -> None:
        reply.set_cookie(
            self._cookie,
            issued.text,
            max_age=int(SESSION_DAYS * DAY),
            httponly=True,
            samesite="strict",
            secure=self._secure,
            path="/",
        )

    def _end(self, request: Request, reply: Response) -> None:
        if text := credentials(read_headers(request.scope), self._cookie):
            self._users.sign_out(text)
        reply.delete_cookie(
            self._cookie, path="/", secure=self._secure, httponly=True, samesite="strict"
        )


def create_app(
    home: Path,
    users: Users,
    *,
    hosts: Collection[str],
    port: int,
    secure: bool = False,
    behind_proxy: bool = False,
    routes: Sequence[Route] = (),
) -> ASGIApp:
    """Return the application that serves a home to its users.

    `hosts` are the names by which clients reach the server, on `port`. With `secure`, browsers
    send the cookie over TLS only. With `behind_proxy`, the address of a client is the last one in
    X-Forwarded-For. `routes` are endpoints for editors in addition to those of det-web. They find
    the user in `request.state.user`, and note the owner of an experiment that they create with
    `request.state.note_owner(number)`.
    """
    cookie = f"det_server_{port}"

    def note_owner(user: User, experiment: int) -> None:
        with Store.reader(home) as store:
            created = store.experiments.get(experiment).created
            # The driver, which may have just been started, reads it for the queue.
            set_user(store.experiment_dir(experiment), user.name)
        users.note_owner(user.name, experiment, created)

    def on_made(request: Request, experiment: int) -> None:
        note_owner(request.state.user, experiment)

    rights = _OF_USERS if runs_as_users(home) else _OF_SERVER
    session = _Session(users, cookie, rights, secure=secure, behind_proxy=behind_proxy)
    own = [*session.routes(), *People(users).routes(), *routes]
    served = make_routes(home, on_made=on_made, owners=users.owners, more=describe(own))
    every = [*own, *served]
    limits = {SIGN_IN: _SIGN_IN_BYTES, SESSION: _SIGN_IN_BYTES, f"{ROOT}{PATH}": MOST_BYTES}
    inner: ASGIApp = Bodies(make_router(every), limits)
    if not missing():
        from .proxy import Notebooks

        inner = Notebooks(inner, home, cookie, secure=secure)
    app = Access(inner, home, users, cookie, every, routes, note_owner)
    names = "det server start --allow-host"
    return Guard(app, hosts, port, other_names=names, forms=(SIGN_IN,), sockets=not missing())


def _local(address: str) -> str:
    """Return an address if it is a path of this server, else that of the first page."""
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_path and address.isprintable() else "/"
