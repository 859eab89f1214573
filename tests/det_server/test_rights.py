"""Every route of the API, for every role, on own experiments and on those of others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from tests.det_server.asgi import HOST, X_DET, ask, sign_in
from tests.det_server.conftest import OF_ANN, OF_BOB, OF_NOBODY, Client

from det_core.errors import StoreError
from det_driver.cli._remote import READS, SHARED
from det_driver.client._calls import SHARED as CALLS
from det_driver.provenance import user_of
from det_driver.store import Store
from det_server import Role, Users, create_app
from det_server.rights import OF_ADMINS, OF_EDITORS


def address(path: str, id: object) -> str:
    """Return an address with the number of an experiment, which is also that of its trial."""
    given = path.replace("{id}", str(id)).replace("{digest}", "0" * 64).replace("{path}", "x")
    given = given.replace("/changes/{name}", "/changes/create_model")
    return f"{given}?ids={id}" if given == "/api/v1/trials" else given


def digest(home: Path, *, but: int | None = None) -> str:
    """Return a digest of all experiments except one, with the names of their files."""
    found = hashlib.sha256()
    with Store.reader(home) as store:
        for summary in store.experiments.list(archived=None):
            if summary.experiment.id == but:
                continue
            found.update(repr((summary, store.trials.list(summary.experiment.id))).encode())
    for each in sorted((home / "experiments").rglob("*")):
        is_left_out = each.is_relative_to(home / "experiments" / str(but))
        if not (is_left_out or each.name.endswith(("-shm", "-wal"))):
            found.update(str(each).encode())
    return found.hexdigest()


# The table

OPEN, READ, EDIT, OWN, ADMIN = "open", "read", "edit", "own", "admin"
OWNER = "owner"
"""For editors and admins who own an experiment, and for no other admin."""
RIGHTS = {
    **dict.fromkeys(
        (
            *("GET /api/v1/about", "GET /api/v1/cluster", "GET /api/v1/commands"),
            *("GET /api/v1/code/{digest}", "GET /api/v1/events", "GET /api/v1/experiments"),
            *("GET /api/v1/me", "GET /api/v1/trials", "GET /metrics", "GET /api/v1/queue"),
            *("GET /api/v1/slots", "GET /api/v1/usage", "GET /api/v1/models"),
            *("GET /api/v1/models/{model}", "GET /api/v1/tokens", "DELETE /api/v1/tokens/{token}"),
            *(
                f"GET /api/v1/experiments/{{id}}{rest}"
                for rest in (
                    *("", "/checkpoints", "/checkpoints/{path}", "/code", "/code/{path}"),
                    *("/curves", "/importances", "/log", "/logs", "/queue", "/search", "/trials"),
                    "/notebook",
                )
            ),
            *(
                f"GET /api/v1/trials/{{id}}{rest}"
                for rest in (
                    *("", "/log", "/log/search", "/media", "/media/{path}", "/series"),
                    "/traces/{path}",
                )
            ),
        ),
        READ,
    ),
    **dict.fromkeys(
        (
            *("POST /api/v1/check", "POST /api/v1/commands", "POST /api/v1/submissions"),
            "POST /api/v1/recordings",
            *("PUT /api/v1/code/{digest}", "POST /api/v1/models", "PATCH /api/v1/models/{model}"),
            "POST /api/v1/models/{model}/versions",
            "PATCH /api/v1/models/{model}/versions/{version}",
            "PUT /api/v1/models/{model}/aliases/{alias}",
        ),
        EDIT,
    ),
    **dict.fromkeys(
        (
            *("PATCH /api/v1/experiments/{id}", "DELETE /api/v1/experiments/{id}"),
            "PATCH /api/v1/experiments/{id}/queue",
            *(
                f"POST /api/v1/experiments/{{id}}/{rest}"
                for rest in ("activate", "cancel", "command", "fork", "kill", "pause")
            ),
            *("POST /api/v1/trials/{id}/continue", "POST /api/v1/trials/{id}/kill"),
        ),
        OWN,
    ),
    **dict.fromkeys(
        (
            f"{method} /api/v1/experiments/{{id}}/terminal"
            for method in ("GET", "POST", "PUT", "DELETE")
        ),
        OWNER,
    ),
    "POST /api/v1/tensorboard": ADMIN,
    "GET /api/v1/alerts": ADMIN,
    "POST /api/v1/alerts": ADMIN,
    "GET /api/v1/users": ADMIN,
    "POST /api/v1/users": ADMIN,
    "PATCH /api/v1/users/{name}": ADMIN,
    "DELETE /api/v1/models/{model}": ADMIN,
    "DELETE /api/v1/models/{model}/versions/{version}": ADMIN,
    "POST /api/v1/session": OPEN,
    "DELETE /api/v1/session": OPEN,
    "GET /api/v1/queries/{name}": READ,
    "POST /api/v1/changes/{name}": EDIT,
    "POST /api/v1/experiments/{id}/changes/{name}": OWN,
    "POST /api/v1/experiments/{id}/replace-code": OWN,
    "POST /api/v1/trials/{id}/changes/{name}": OWN,
}
"""Who may use each endpoint. A new one is refused by the test until it has a line here."""


FOREIGN = (OF_BOB, OF_NOBODY, 99, f"00{OF_BOB}", "9" * 30)
"""Numbers of experiments of others, and of none. A number may have leading zeros."""
UNKNOWN = {"nobody": 401, "viewer": 403, "editor": 403, "admin": 404}
"""The statuses for a change of nothing that exists."""


def is_allowed(right: str, role: str, *, own: bool) -> bool:
    """Say whether a role may use an endpoint, in the words of the documentation."""
    if right in (OPEN, READ):
        return right == OPEN or role != "nobody"
    if right == OWNER:
        return own and role in ("admin", "editor")
    if role in ("admin", "nobody", "viewer"):
        return role == "admin"
    return right == EDIT or (right == OWN and own)


@pytest.mark.parametrize("role", ["nobody", "viewer", "editor", "admin"])
def test_each_endpoint_is_for_whom_the_table_says(
    home: Path, users: Users, app: ASGIApp, role: str
) -> None:
    """A request without a body is refused later, for that reason."""
    name = {"nobody": None, "viewer": "vera", "editor": "ann", "admin": "root"}[role]
    signed_in = sign_in(users, name) if name else []
    if name:
        with Store.reader(home) as store:
            users.note_owner(name, OF_ANN, store.experiments.get(OF_ANN).created)
    before = digest(home, but=None if role == "viewer" else OF_ANN)

    async def status(method: str, path: str, id: object) -> int:
        # Of the stream of events, the first part is enough.
        parts = 1 if path == "/api/v1/events" else None
        found = await ask(app, method, address(path, id), [HOST, X_DET, *signed_in], parts=parts)
        return found.status

    async def check() -> None:
        assert await status("PUT", "/api/v1/none", 0) == UNKNOWN[role]
        for each in await drawn(app, users):
            method, path = each.split()
            for id in (*FOREIGN, OF_ANN) if "{id}" in path else (OF_ANN,):
                allowed = is_allowed(RIGHTS[each], role, own=id == OF_ANN)
                got = await status(method, path, id)
                assert got < 500, (each, id, got)
                if not allowed:
                    assert got == (403 if name else 401), (each, id, got)
                elif id == OF_ANN and not any(
                    part in path for part in ("{path}", "{model}", "{name}", "{token}")
                ):
                    assert got not in (401, 403, 404), (each, id, got)
                else:
                    assert got not in (401, 403), (each, id, got)

    asyncio.run(check())
    assert digest(home, but=None if role == "viewer" else OF_ANN) == before or role == "admin"


async def drawn(app: ASGIApp, users: Users) -> list[str]:
    """Return the endpoints in the OpenAPI document. Those that delete come last."""
    found = await ask(app, "GET", "/api/v1/openapi.json", [HOST, *sign_in(users, "root")])
    listed = [
        f"{method.upper()} {path}"
        for path, methods in json.loads(found.body)["paths"].items()
        for method in methods
    ]
    # What is below an experiment is deleted before it.
    return sorted(
        listed,
        key=lambda each: (each.startswith("DELETE"), each.endswith("session"), -len(each)),
    )


def test_the_table_has_each_route_of_the_app(app: ASGIApp, users: Users) -> None:
    """Routes that the OpenAPI document does not have are the page, and the document itself."""
    served = {
        f"{method} {re.sub(':[a-z]+}', '}', route.path)}"
        for route in served_by(app)
        for method in (route.methods or set()) - {"HEAD"}
    }
    in_document = {*asyncio.run(drawn(app, users))}
    assert served - in_document == {
        *("GET /api/v1/openapi.json", "GET /login", "POST /login"),
        *("GET /static/{name}", "GET /static/{rest}", "GET /{rest}"),
        *(f"{method} /api/{{rest}}" for method in ("GET", "POST", "PATCH", "PUT", "DELETE")),
    }
    assert in_document == RIGHTS.keys()


def served_by(app: object) -> list[Route]:
    """Return the routes of an application below its guards."""
    while not hasattr(app, "routes"):
        inner = {**vars(app)}
        app = inner.get("_app") or inner["app"]
    return [each for each in app.routes if isinstance(each, Route)]


BODIES = {
    "POST /alerts": {"experiment": OF_ANN},
    "model delete": ["model", "delete", "line", "--yes"],
    "delete_model": ["line"],
    "delete_version": ["line", 1],
}


def ways() -> list[tuple[str, object]]:
    """Return the requests for each way to do what is for admins, with their bodies."""
    endpoints = [
        (re.sub(r"/([^{ ]*)", r"/api/v1/\1", each, count=1), BODIES.get(each, {}))
        for each in OF_ADMINS.endpoints
    ]
    commands = [
        ("POST /api/v1/commands", {"argv": BODIES.get(each, each.split())})
        for each in OF_ADMINS.commands - READS
    ]
    reads = [
        (f"GET /api/v1/commands?argv={quote(json.dumps(each.split()))}", None)
        for each in OF_ADMINS.commands & READS
    ]
    calls = [(f"POST /api/v1/changes/{each}", BODIES[each]) for each in OF_ADMINS.calls]
    return sorted([*endpoints, *commands, *reads, *calls], key=str)


@pytest.mark.parametrize(("target", "body"), ways())
def test_only_admins_do_in_any_way_what_is_theirs(
    app: ASGIApp, users: Users, home: Path, target: str, body: object
) -> None:
    with Store(home) as store:
        store.models.create("line")
    target = target.replace("{model}", "line").replace("{version}", "1").replace("{name}", "bob")
    headers = [HOST, X_DET, *sign_in(users, "ann")]
    reply = asyncio.run(ask(app, *target.split(), headers, json.dumps(body).encode()))
    assert (reply.status, b"only an admin may do this" in reply.body) == (403, True), reply.body


def test_the_rules_name_every_way_to_what_is_shared(app: ASGIApp, users: Users) -> None:
    """And none that does not exist, so that no rule is one for a name of the past."""
    assert OF_ADMINS.calls | OF_EDITORS.calls == CALLS.keys()
    assert not OF_ADMINS.calls & OF_EDITORS.calls
    assert (OF_ADMINS.commands | OF_EDITORS.commands) - READS == SHARED
    assert not OF_ADMINS.commands & OF_EDITORS.commands
    drawn_up = {each.replace("/api/v1", "") for each in asyncio.run(drawn(app, users))}
    rights = {each.replace("/api/v1", ""): right for each, right in RIGHTS.items()}
    assert {each for each in drawn_up if rights[each] == ADMIN} == OF_ADMINS.endpoints
    of_commands = {"POST /changes/{name}", "POST /commands", "POST /submissions"}
    of_commands |= {"POST /recordings"}
    assert {each for each in drawn_up if rights[each] == EDIT} == (
        OF_EDITORS.endpoints | of_commands | {"PUT /code/{digest}"}
    )


def test_an_editor_changes_their_own_experiment(client: Client, home: Path) -> None:
    editor = client("ann")
    reply = editor.patch(f"/api/v1/experiments/{OF_ANN}", json={"name": "renamed"})
    assert reply.status_code == 200, reply.text
    assert editor.get(f"/api/v1/experiments/{OF_ANN}").json()["name"] == "renamed"


def test_a_later_experiment_of_the_same_number_is_not_owned(users: Users, home: Path) -> None:
    with Store.reader(home) as store:
        created = store.experiments.get(OF_ANN).created
    assert users.owner(OF_ANN, created) == "ann"
    assert users.owner(OF_ANN, created + 1) is None


def test_experiments_of_a_removed_user_are_nobodys(client: Client, users: Users) -> None:
    users.remove("ann")
    users.add("ann", users.everybody()[0].role, "another password")
    reply = client("ann").patch(f"/api/v1/experiments/{OF_ANN}", json={"name": "x"})
    assert reply.status_code == 403


def test_further_routes_are_for_editors_and_note_owners(home: Path, users: Users) -> None:
    def submit(request: object) -> JSONResponse:
        state = request.state  # type: ignore[attr-defined]
        state.note_owner(OF_NOBODY)
        return JSONResponse({"user": state.user.name})

    routes = [
        Route("/api/v1/experiments", submit, methods=["POST"]),
        Route("/api/v1/experiments/{id:number}/more", submit, methods=["POST"]),
    ]
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=routes)

    def status(name: str, path: str) -> int:
        given = {"authorization": f"Bearer {users.make_token(name).text}"}
        client = TestClient(app, base_url="https://det.example", headers=given)
        return client.post(path).status_code

    assert status("vera", "/api/v1/experiments") == 403
    assert status("bob", f"/api/v1/experiments/{OF_NOBODY}/more") == 403
    assert status("bob", "/api/v1/experiments") == 200
    assert status("bob", f"/api/v1/experiments/{OF_NOBODY}/more") == 200
    assert status("ann", f"/api/v1/experiments/{OF_NOBODY}/more") == 403
    # The queue for slots shares among users.
    assert user_of(home / "experiments" / str(OF_NOBODY)) == "bob"


def test_a_later_user_of_a_name_owns_nothing_of_the_earlier(users: Users) -> None:
    created = time.time()
    users.remove("ann")
    users.add("ann", Role.EDITOR, "a long password")
    # As a submission with the key of the earlier user does.
    users.note_owner("ann", OF_ANN, created)
    assert users.owner(OF_ANN, created) is None


def test_users_that_cannot_be_read_are_a_refusal(
    client: Client, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = client("ann")

    def locked(text: str) -> None:
        raise StoreError("database is locked")

    monkeypatch.setattr(users, "find", locked)
    assert ann.get("/api/v1/me").status_code == 503


def test_page_is_told_who_asks_and_who_owns_what(client: Client, home: Path) -> None:
    told = client("vera").get("/api/v1/about").json()
    assert (told["user"], told["role"]) == ("vera", "viewer")
    with Store(home) as store:
        for id in (OF_ANN, OF_BOB, OF_NOBODY):
            store.experiments.update(id, ended=time.time())
    rows = client("vera").get("/api/v1/usage").json()["rows"]
    assert {row["user"] for row in rows} == {"ann", "bob", None}
    held = client("vera").get("/api/v1/slots?hours=1").json()["experiments"]
    assert {each["experiment"]: each["user"] for each in held} == {1: "ann", 2: "bob", 3: None}
