"""Finds out who sent a request, and whether they may do what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anyio import CancelScope
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from det_core.errors import DetError, StoreError
from det_driver.store import ExperimentRow, Store
from det_node.task import NOTEBOOK
from det_web.endpoints import ROOT
from det_web.guard import (
    NOTEBOOKS,
    find_notebook,
    is_private,
    is_read,
    last_header,
    read_cookie,
    read_headers,
    refusal,
)
from det_web.openapi import ENDPOINTS

from .people import TOKENS
from .rights import refuse_endpoint
from .users import Role, User, Users

SIGN_IN = "/login"
SESSION = f"{ROOT}/session"
_EXPERIMENT, _TRIAL = f"{ROOT}/experiments/{{id", f"{ROOT}/trials/{{id"
_STARTS = {each.full_path for each in ENDPOINTS if each.starts}
_GOES_ON = "/activate"
"""How the one of them ends that starts the training of the same experiment, and of no new one."""
_UNKNOWN = "sign in first: on this server's page, or with a token"
_CHANGED = "what you may see has changed just now; try again"
VALID_SECONDS = 2.0
"""How often it is looked whether the session of a long reply, such as a log, is still valid."""
_REFUSED = 1008
"""The code with which a WebSocket ends whose user may no longer have it."""
# A browser sends a strict cookie only for what its own site asked for. This page asks again.
_AGAIN = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><title>det</title>'
)


class View:
    """Decides which experiments one user sees and may change.

    - Admins see and change all experiments, and owners their own.
    - Only members of a private workspace see the experiments with its label. With the labels of
      several, one has to be a member of each.
    - Editors change the experiments of workspaces where they are members as editors.

    It holds for one request: labels and members may change before the next one.
    """

    def __init__(self, home: Path, users: Users, user: User) -> None:
        self._home = home
        self._users = users
        self._user = user
        self._workspaces = (
            {each.name: each for each in users.workspaces()} if user.role is not Role.ADMIN else {}
        )
        # The labels of experiments that the user does not see.
        self._closed = {
            each.name
            for each in self._workspaces.values()
            if each.private and user.name not in each.members
        }
        self._known: dict[object, bool] = {}
        self._has_all = False

    @property
    def is_whole(self) -> bool:
        """Whether the user sees all experiments."""
        return not self._closed

    def is_wider(self, other: View) -> bool:
        """Return whether the user sees here all workspaces that another one shows."""
        return self._closed <= other._closed

    def find(self, id: int, *, is_trial: bool = False) -> ExperimentRow | None:
        """Return an experiment, or that of a trial.

        None where there is none, it cannot be read, or the user does not see it.
        """
        try:
            found = self._read(id, is_trial=is_trial)
        except StoreError:
            return None
        return found if self._known[found.id] else None

    def shows(self, id: int) -> bool:
        """Return whether the user sees an experiment. Raises StoreError if it cannot be read."""
        return self._known[self._read(id).id]

    def may_change(self, found: ExperimentRow) -> bool:
        """Return whether the user may change an experiment that they see."""
        roles = (
            each.members.get(self._user.name)
            for each in self._workspaces.values()
            if each.name in found.labels
        )
        return (
            self._user.role is Role.ADMIN
            or self._users.owner(found.id, found.created) == self._user.name
            or Role.EDITOR in roles
        )

    def __contains__(self, id: object) -> bool:
        """Return whether the user sees the experiment of a number."""
        if id not in self._known:
            self._read_all()
        return self._known.get(id, False)

    def add(self, id: int) -> None:
        """Show an experiment that was made for the user."""
        self._known[id] = True

    def numbers(self) -> list[int]:
        """Return the numbers of the experiments that the user sees."""
        self._read_all()
        return [id for id, shown in self._known.items() if shown and isinstance(id, int)]

    def _read(self, id: int, *, is_trial: bool = False) -> ExperimentRow:
        with Store.reader(self._home) as store:
            found = store.experiments.get(store.trials.get(id).experiment_id if is_trial else id)
        self._known[found.id] = self._shows(
            found, self.is_whole or self._users.owner(found.id, found.created) == self._user.name
        )
        return found

    def _read_all(self) -> None:
        if self._has_all or not Store.is_at(self._home):
            return
        self._has_all = True
        owned = self._users.owned(self._user.name)
        with Store.reader(self._home) as store:
            for summary in store.experiments.list(archived=None, unread={}):
                each = summary.experiment
                is_owner = owned.get(each.id) == each.created
                self._known.setdefault(each.id, self._shows(each, is_owner))

    def _shows(self, found: ExperimentRow, is_owner: bool) -> bool:
        return is_owner or self._closed.isdisjoint(found.labels)


class Access:
    """Passes what a signed-in user may do to `app`, with `request.state.user`.

    Everybody may read what they see by `View`. Editors may create experiments, and change those
    that they own. The routes in `submit` are for editors: those below an experiment or trial for
    its owner. Admins may do everything. `request.state.look` returns the experiments that exist for
    the user, or None for all. A long reply ends when an experiment in `request.state.named` does
    not exist for the user any more.
    """

    def __init__(
        self,
        app: ASGIApp,
        home: Path,
        users: Users,
        cookie: str,
        routes: Sequence[Route],
        submit: Sequence[Route],
        note_owner: Callable[[User, int], None],
    ) -> None:
        self._app = app
        self._home = home
        self._users = users
        self._cookie = cookie
        self._routes = routes
        self._submit = submit
        self._note_owner = note_owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path, reads = read_headers(scope), scope["path"], is_read(scope)
        text = credentials(headers, self._cookie)
        scope["state"] = {**scope.get("state", {}), "user": None, "named": set()}
        is_open = (
            path == SIGN_IN or path.startswith("/static/") if reads else path in (SIGN_IN, SESSION)
        )
        admit = partial(self._admit, scope, text, is_open=is_open)
        try:
            # A database may be locked for a while.
            view, status, problem = await run_in_threadpool(admit) if text else (None, 200, "")
        except StoreError:
            problem = "the users of this server cannot be read at the moment; try again later"
            await refusal(503, problem)(scope, receive, send)
            return
        reply: ASGIApp = self._app
        if view is None and not is_open:
            reply = self._sign_in(scope, headers, reads)
        elif problem:
            reply = refusal(status, problem)
        if view is not None and reads:
            named = scope["state"]["named"]
            await self._pass_while_valid(text, view, named, reply, scope, receive, send)
        else:
            await reply(scope, receive, send)

    def _admit(self, scope: Scope, text: str, *, is_open: bool) -> tuple[View | None, int, str]:
        """Find out who sent a request, and note it in the scope.

        Returns what the user sees, or None for nobody who is known. A status and a sentence say why
        the request is refused. The sentence is empty if it is not.
        """
        user = self._users.find(text)
        if user is None:
            return None, 200, ""
        view = View(self._home, self._users, user)
        scope["state"] |= {
            "user": user,
            "note_owner": partial(self._note_owner, user),
            "look": partial(self._look, user),
            "owns": partial(self._owns, user),
            "read_preferences": partial(self._users.preferences, user.name),
            "check_quota": partial(self._check_quota, user),
            "find_owner": self._users.owner,
        }
        if is_open:
            return view, 200, ""
        status, problem = self._judge(scope, user, view)
        if not problem and not is_read(scope):
            status, problem = 409, self._over_quota(scope)
        return view, status, problem

    def _end(
        self, text: str, view: View, named: Collection[int], scope: Scope
    ) -> tuple[int, str] | None:
        """Return why a reply ends now, as a status and a sentence. None if it goes on."""
        user = self._users.find(text)
        if user is None:
            return 401, _UNKNOWN
        now = View(self._home, self._users, user)
        if now.is_wider(view) and all(map(now.shows, named)):
            return None
        status, problem = self._judge(scope, user, now)
        if problem:
            return status, problem
        for id in named:
            with suppress(StoreError):
                if not now.shows(id):
                    return 404, _no(id, is_trial=False)
        return 503, _CHANGED

    async def _pass_while_valid(
        self,
        text: str,
        view: View,
        named: Collection[int],
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on, and end its reply once the session or token is no longer valid.

        The reply also ends if the user does not see a workspace or a named experiment any more.
        """
        has_begun = has_ended = False
        end: tuple[int, str] | None = None
        is_socket = scope["type"] == "websocket"

        async def sending(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun, kind = True, message["type"]
            goes_on = kind.endswith(("response.start", "websocket.accept", "websocket.send"))
            has_ended = not message.get("more_body", goes_on)
            await send(message)

        async def watch() -> None:
            nonlocal end
            while end is None:
                await asyncio.sleep(VALID_SECONDS)
                # A database that is locked now says nothing, nor does a deleted experiment.
                with suppress(StoreError):
                    end = await run_in_threadpool(self._end, text, view, named, scope)
            handling.cancel()

        with CancelScope() as handling:
            watching = asyncio.create_task(watch())
            try:
                await app(scope, receive, sending)
            finally:
                watching.cancel()
        if end is not None and not has_begun:
            await refusal(*end)(scope, receive, send)
        elif has_begun and not has_ended and is_socket:
            await send({"type": "websocket.close", "code": _REFUSED})
        elif has_begun and not has_ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _sign_in(self, scope: Scope, headers: dict[str, list[str]], reads: bool) -> ASGIApp:
        if is_private(scope["path"]) or not reads:
            reply = refusal(401, _UNKNOWN)
            reply.headers["www-authenticate"] = "Bearer"
            return reply
        no_store = {"cache-control": "no-store"}
        if not set(headers.get("sec-fetch-site", [])) <= {"same-origin", "none"}:
            return HTMLResponse(_AGAIN, headers=no_store)
        return RedirectResponse(f"{SIGN_IN}?next={quote(scope['path'])}", 303, no_store)

    def _look(self, user: User) -> View | None:
        view = View(self._home, self._users, user)
        return None if view.is_whole else view

    def _owns(self, user: User, experiment: int) -> bool:
        """Return whether an experiment is the user's own, which it is not for every admin."""
        try:
            with Store.reader(self._home) as store:
                found = store.experiments.get(experiment)
        except StoreError:
            return False
        return self._users.owner(found.id, found.created) == user.name

    def _check_quota(self, user: User, experiment: int | None = None) -> None:
        """Raise DetError if a user uses all of their quota, or the owner of an experiment does."""
        owner: str | None = user.name
        if experiment is not None:
            with Store.reader(self._home) as store:
                found = store.experiments.get(experiment)
            owner = self._users.owner(found.id, found.created)
        if owner is not None:
            self._users.check_quota(owner)

    def _over_quota(self, scope: Scope) -> str:
        """Return why an endpoint that starts an experiment may not do so, or an empty text."""
        route, params = self._route(scope)
        path = route.path if route is not None else ""
        if path not in _STARTS:
            return ""
        try:
            id = params["id"] if path.endswith(_GOES_ON) else None
            scope["state"]["check_quota"](id)
        except DetError as error:
            return str(error)
        return ""

    def _judge(self, scope: Scope, user: User, view: View) -> tuple[int, str]:
        """Return why a request is refused, as a status and a sentence, which is empty if it is not.

        Others' experiments that a user does not see do not exist: a reader gets status 404.
        """
        reads = is_read(scope)
        if scope["path"].startswith(NOTEBOOKS):
            return self._judge_notebook(scope, user, view)
        # Everybody sees and ends their own sessions and tokens, and no others, by the endpoint.
        if scope["path"].startswith(f"{TOKENS}/"):
            return 200, ""
        route, params = self._route(scope)
        path = route.path if route is not None else scope["path"]
        if path.startswith((_EXPERIMENT, _TRIAL)):
            is_trial = path.startswith(_TRIAL)
            if reads:
                return 404, self._hidden(scope, view, params["id"], is_trial)
            if user.role is Role.EDITOR:
                return 403, self._foreign(user, view, params["id"], is_trial)
        if user.role is Role.VIEWER and not reads:
            return 403, (
                f"{user.name} is a viewer, and changes nothing; an admin can add an editor"
            )
        if route in self._submit:
            return 200, ""
        return 403, refuse_endpoint(user, scope["method"], path)

    def _hidden(self, scope: Scope, view: View, id: int, is_trial: bool) -> str:
        """Return an empty text for an experiment or trial that a user sees."""
        if view.is_whole:
            return ""
        found = view.find(id, is_trial=is_trial)
        if found is None:
            # The same sentence as for one that does not exist.
            return _no(id, is_trial=is_trial)
        scope["state"]["named"].add(found.id)
        return ""

    def _judge_notebook(self, scope: Scope, user: User, view: View) -> tuple[int, str]:
        """Return why a user may not use a notebook. It is for its owner, and for no admin.

        Its code has the rights of the server's account, so its owner has to be an editor still.
        """
        id = find_notebook(scope["path"])
        found = None if id is None else view.find(id)
        if found is None or found.task != NOTEBOOK:
            return 404, "there is no such notebook; det notebook list shows those that you see"
        if self._users.owner(found.id, found.created) != user.name:
            return 403, f"notebook {id} is not {user.name}'s; only its owner opens it"
        if user.role is Role.VIEWER:
            return 403, f"{user.name} is a viewer, and runs nothing; an admin can make an editor"
        scope["state"]["named"].add(found.id)
        return 200, ""

    def _route(self, scope: Scope) -> tuple[Route | None, dict[str, Any]]:
        """Return the route that will handle a request, and the parameters in its path."""
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return route, found["path_params"]
        return None, {}

    def _foreign(self, user: User, view: View, id: int, is_trial: bool) -> str:
        """Return an empty text for what this user may change, else who may."""
        what = f"{'trial' if is_trial else 'experiment'} {id}"
        found = view.find(id, is_trial=is_trial)
        if found is None:
            # An experiment that cannot be read may be anybody's.
            return f"{what} is not {user.name}'s; only its owner or an admin may change it"
        if view.may_change(found):
            return ""
        owner = self._users.owner(found.id, found.created)
        return (
            f"{what} is {f'of {owner}' if owner else 'of nobody who is known here'}, and not"
            f" {user.name}'s; only its owner or an admin may change it"
        )


def _no(id: int, *, is_trial: bool) -> str:
    return f"no {'trial' if is_trial else 'experiment'} {id}; det list shows those that you see"


def credentials(headers: dict[str, list[str]], cookie: str) -> str:
    """Return the text of the session or API token that a request carries, or an empty text."""
    scheme, _, text = last_header(headers, "authorization").partition(" ")
    return text.strip() if scheme == "Bearer" else read_cookie(headers, cookie)
