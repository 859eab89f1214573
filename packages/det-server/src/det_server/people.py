"""The endpoints about users, and about sessions and API tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from det_core.errors import DetError
from det_web.endpoints import NO_STORE, ROOT, failed
from det_web.openapi import takes

from .users import Account, Role, Token, User, Users

TOKENS = f"{ROOT}/tokens"


class Accounts(msgspec.Struct):
    """All users, sorted by name."""

    users: list[Account]


class NewAccount(msgspec.Struct, forbid_unknown_fields=True):
    """A user to add."""

    name: str
    password: str
    role: Role


class AccountChange(msgspec.Struct, forbid_unknown_fields=True):
    """A change of a user's account. Fields that are left out keep their values.

    `quota` is in bytes. If it is null, the limit is removed.
    """

    role: Role | None = None
    disabled: bool | None = None
    quota: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | msgspec.UnsetType | None = (
        msgspec.UNSET
    )


class Tokens(msgspec.Struct):
    """Sessions and API tokens that are valid: one's own, and all for an admin."""

    tokens: list[Token]


_new = msgspec.json.Decoder(NewAccount).decode
_change = msgspec.json.Decoder(AccountChange).decode


class People:
    """The endpoints for the users of a server."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        return [
            Route(f"{ROOT}/users", self.users),
            Route(f"{ROOT}/users", self.add, methods=["POST"]),
            Route(f"{ROOT}/users/{{name}}", self.change, methods=["PATCH"]),
            Route(TOKENS, self.tokens),
            Route(f"{TOKENS}/{{token}}", self.revoke, methods=["DELETE"]),
        ]

    @takes(response=Accounts)
    async def users(self, request: Request) -> Response:
        """List the users. Only for admins."""
        return _reply(Accounts(await run_in_threadpool(self._users.accounts)))

    @takes(body=NewAccount, response=Accounts, status=201)
    async def add(self, request: Request) -> Response:
        """Add a user. Only for admins."""
        try:
            given = _new(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return failed(400, str(error))
        try:
            await run_in_threadpool(self._users.add, given.name, given.role, given.password)
        except DetError as error:
            return failed(409, str(error))
        return _reply(Accounts(await run_in_threadpool(self._users.accounts)), 201)

    @takes(body=AccountChange, response=Accounts)
    async def change(self, request: Request) -> Response:
        """Give a user another role or quota, or disable or enable a user. Only for admins."""
        try:
            given = _change(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return failed(400, str(error))
        name = request.path_params["name"]
        try:
            await run_in_threadpool(
                self._users.change, name, role=given.role, disabled=given.disabled
            )
            if given.quota is not msgspec.UNSET:
                await run_in_threadpool(self._users.set_quota, name, given.quota)
        except DetError as error:
            return failed(409, str(error))
        return await self.users(request)

    @takes(response=Tokens)
    async def tokens(self, request: Request) -> Response:
        """List one's sessions and API tokens. For an admin, those of all users."""
        return _reply(Tokens(await run_in_threadpool(self._seen, request.state.user)))

    @takes(response=Tokens)
    async def revoke(self, request: Request) -> Response:
        """End a session or an API token of one's own. An admin may end any."""
        given = request.path_params["token"]
        seen = await run_in_threadpool(self._seen, request.state.user)
        found = [each for each in seen if str(each.id) == given]
        if not found:
            return failed(404, "none of your sessions and tokens has this number")
        try:
            await run_in_threadpool(self._users.revoke, found[0].id)
        except DetError as error:
            return failed(409, str(error))
        return _reply(Tokens([each for each in seen if each.id != found[0].id]))

    def _seen(self, user: User) -> list[Token]:
        is_admin = user.role is Role.ADMIN
        return [each for each in self._users.tokens() if is_admin or each.user == user.name]


def _reply(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, NO_STORE, "application/json")
