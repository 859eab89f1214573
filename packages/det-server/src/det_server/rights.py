"""Rights to what belongs to no experiment. Commands, calls and endpoints have the same rule."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass

from det_web.endpoints import ROOT

from .users import Role, User

_TYPE = re.compile(r":[a-z]+}")
_AN = {Role.VIEWER: "a viewer", Role.EDITOR: "an editor"}


@dataclass(frozen=True)
class Ways:
    """The commands, client calls and endpoints that one role may use.

    An endpoint is a method and the path of its route, below the root of the API.
    """

    commands: frozenset[str]
    calls: frozenset[str]
    endpoints: frozenset[str]


OF_ADMINS = Ways(
    commands=frozenset(("alerts list", "alerts test", "alerts retry", "model delete")),
    calls=frozenset(("delete_model", "delete_version")),
    endpoints=frozenset(
        (
            *("GET /alerts", "POST /alerts", "POST /tensorboard"),
            *("DELETE /models/{model}", "DELETE /models/{model}/versions/{version}"),
            *("GET /users", "POST /users", "PATCH /users/{name}"),
        )
    ),
)
"""What only an admin may do."""
OF_EDITORS = Ways(
    commands=frozenset(
        (
            *("model create", "model add-version", "model register-version", "model alias"),
            "model edit",
        )
    ),
    calls=frozenset(
        (
            *("create_model", "update_model", "add_version", "update_version", "set_alias"),
            "remove_alias",
        )
    ),
    endpoints=frozenset(
        (
            *("POST /check", "POST /models", "PATCH /models/{model}"),
            "POST /models/{model}/versions",
            "PATCH /models/{model}/versions/{version}",
            "PUT /models/{model}/aliases/{alias}",
        )
    ),
)
"""What every editor may do. It changes things that no single user owns, such as models."""


def refuse_endpoint(user: User, method: str, path: str) -> str:
    """Return why a user may not use an endpoint that belongs to no experiment, or an empty text.

    `path` is that of its route.
    """
    reads = method in ("GET", "HEAD")
    way = f"{'GET' if reads else method} {_TYPE.sub('}', path.removeprefix(ROOT))}"
    return _refuse(user, way, OF_ADMINS.endpoints, OF_EDITORS.endpoints, reads=reads)


def refuse_command(user: User, name: str, *, reads: bool) -> str:
    """Return why a user may not execute a command about no experiment, or an empty text."""
    return _refuse(user, name, OF_ADMINS.commands, OF_EDITORS.commands, reads=reads)


def refuse_call(user: User, name: str) -> str:
    """Return why a user may not make a call that changes what is shared, or an empty text."""
    return _refuse(user, name, OF_ADMINS.calls, OF_EDITORS.calls, reads=False)


def _refuse(user: User, way: str, of_admins: Set[str], of_editors: Set[str], *, reads: bool) -> str:
    """Judge one way. Everybody reads what is not for admins. Other changes are for admins."""
    if user.role is Role.ADMIN or (reads and way not in of_admins):
        return ""
    if user.role is Role.EDITOR and way in of_editors:
        return ""
    return f"only an admin may do this, and {user.name} is {_AN[user.role]}"
