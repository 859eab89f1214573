"""Labels that are workspaces: who sees and changes their experiments, on every endpoint."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.det_server.asgi import HOST, X_DET, Reply, ask, sign_in
from tests.det_server.conftest import CONFIG, OF_ANN, OF_BOB, Client, mark_of
from tests.det_server.test_rights import RIGHTS, UNKNOWN, address, digest

from det_core.checkpoint import write_checkpoint
from det_core.errors import DetError
from det_core.storage import LocalStorage
from det_driver.client import Change
from det_driver.store import Store
from det_server import Role, Users, create_app
from det_server.submit import Commands
from det_web.events import _parts

SECRET, MISSING = "secret plans", 99
MARK = mark_of(OF_BOB).encode()


@pytest.fixture(autouse=True)
def private(home: Path, users: Users) -> None:
    """Make an experiment of Bob's private."""
    users.set_workspace(SECRET, private=True)
    with Store(home) as store:
        labels = store.experiments.get(OF_BOB).labels
        store.experiments.update(OF_BOB, labels=[*labels, SECRET], state="ACTIVE")


def send(app: ASGIApp, users: Users, name: str, each: str, id: int) -> Reply:
    method, path = each.split()
    headers = [HOST, X_DET, *sign_in(users, name)]
    parts = 1 if path == "/api/v1/events" else None
    return asyncio.run(ask(app, method, address(path, id), headers, parts=parts))


@pytest.mark.parametrize("name", ["vera", "ann"])
def test_an_outsider_finds_nothing_of_a_private_experiment(
    app: ASGIApp, users: Users, home: Path, name: str
) -> None:
    """Not even that it exists: replies are those for a number of no experiment."""
    before = digest(home)
    for each, right in RIGHTS.items():
        if right == "open" or (right in ("own", "edit") and "{id}" not in each):
            continue
        reply = send(app, users, name, each, OF_BOB)
        assert MARK not in reply.body, (each, reply)
        if "{id}" in each:
            missing = send(app, users, name, each, MISSING)
            assert reply.status == missing.status == (404 if each.startswith("GET") else 403), each
            assert reply.body.replace(b" 2", b" 99") == missing.body, each
    assert digest(home) == before


@pytest.mark.parametrize(
    ("query", "args"),
    [
        *((name, "[{id}]") for name in ("experiment", "summary", "code_names", "trial")),
        *((name, "[{id}]") for name in ("log_files", "compared", "check_deletable")),
        ("trials", "[{id}, false, null]"),
        *(("code_file", '[{id}, "x"]'), ("changed", "[{id}, null]"), ("measured", "[{id}, null]")),
        *(("log", "[{id}, 0, 0, null, 9]"), ("reports", "[{id}, null, 0]")),
        *(("checkpoints", "[{id}, null]"), ("checkpoints", "[null, {id}]")),
        ("curve", '[{id}, "error", "training", 9, null, "batches"]'),
    ],
)
def test_a_client_of_an_outsider_finds_nothing(
    app: ASGIApp, users: Users, query: str, args: str
) -> None:
    def found(name: str, id: int) -> tuple[int, bytes]:
        target = f"/api/v1/queries/{query}?args={quote(args.replace('{id}', str(id)))}"
        reply = asyncio.run(ask(app, "GET", target, [HOST, X_DET, *sign_in(users, name)]))
        return reply.status, reply.body.replace(f" {id}".encode(), b" ID")

    assert found("ann", OF_BOB) == found("ann", MISSING)
    assert MARK not in found("ann", OF_BOB)[1]
    whole = found("bob", OF_BOB)
    assert whole[0] == 200 or query in ("code_file", "log")


@pytest.mark.parametrize(
    ("name", "role", "changes"),
    [
        ("vera", Role.VIEWER, False),
        ("vera", Role.EDITOR, False),
        ("ann", Role.VIEWER, False),
        ("ann", Role.EDITOR, True),
        ("bob", None, True),
        ("root", None, True),
    ],
)
def test_members_have_the_rights_of_their_role(
    app: ASGIApp, users: Users, name: str, role: Role | None, changes: bool
) -> None:
    if role is not None:
        users.set_member(SECRET, name, role)
    assert MARK in send(app, users, name, "GET /api/v1/experiments", 0).body
    assert MARK in send(app, users, name, "GET /api/v1/trials", OF_BOB).body
    assert b'name="by bob"' in send(app, users, name, "GET /metrics", 0).body
    for each, right in RIGHTS.items():
        if "{id}" in each and "{path}" not in each and right == "read":
            # It is no notebook.
            seen = (409,) if each.endswith("/notebook") else (200, 400)
            assert send(app, users, name, each, OF_BOB).status in seen, each
    reply = send(app, users, name, "PATCH /api/v1/experiments/{id}", OF_BOB)
    # A request without a body is refused later, for that reason.
    assert reply.status == (400 if changes else UNKNOWN["viewer"])


def test_members_of_an_open_workspace_change_what_others_made(app: ASGIApp, users: Users) -> None:
    users.set_workspace(SECRET, private=False)
    patch = "PATCH /api/v1/experiments/{id}"
    assert MARK in send(app, users, "vera", "GET /api/v1/experiments", 0).body
    assert send(app, users, "ann", patch, OF_BOB).status == 403
    users.set_member(SECRET, "ann", Role.EDITOR)
    assert send(app, users, "ann", patch, OF_BOB).status == 400
    users.set_member(SECRET, "ann", None)
    assert send(app, users, "ann", patch, OF_BOB).status == 403


def test_labels_of_two_private_workspaces_need_a_member_of_both(app: ASGIApp, users: Users) -> None:
    users.set_member(SECRET, "vera", Role.VIEWER)
    users.set_workspace(mark_of(OF_BOB), private=True)
    one = "GET /api/v1/experiments/{id}"
    assert send(app, users, "vera", one, OF_BOB).status == 404
    users.set_member(mark_of(OF_BOB), "vera", Role.VIEWER)
    assert send(app, users, "vera", one, OF_BOB).status == 200
    users.remove_workspace(SECRET)
    assert send(app, users, "vera", one, OF_BOB).status == 200


def test_a_list_is_whole_again_for_who_sees_more_than_before(client: Client, users: Users) -> None:
    vera = client("vera")
    first = vera.get("/api/v1/experiments").json()
    again = vera.get(f"/api/v1/experiments?since={quote(first['version'])}").json()
    assert (again["whole"], again["columns"]["id"]) == (False, [])
    users.set_member(SECRET, "vera", Role.VIEWER)
    more = vera.get(f"/api/v1/experiments?since={quote(first['version'])}").json()
    assert (more["whole"], OF_BOB in more["columns"]["id"]) == (True, True)
    users.set_member(SECRET, "vera", None)
    less = vera.get(f"/api/v1/experiments?since={quote(more['version'])}").json()
    assert (less["whole"], OF_BOB in less["columns"]["id"]) == (True, False)


def test_events_name_what_their_reader_sees() -> None:
    changes = [Change(frozenset({1, 2}), {1: frozenset({5}), 2: frozenset({6})})]
    (experiments, trials) = _parts(changes, lambda: {1})
    assert b'{"ids":[1]}' in experiments
    assert b'{"experiment":1,"ids":[5]}' in trials
    assert _parts([Change(frozenset({2}), {})], lambda: {1}) == []


def test_a_stream_ends_when_its_reader_is_no_member_any_more(
    client: Client, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never ends by itself, so this test would never end either."""
    monkeypatch.setattr("det_server.access.VALID_SECONDS", 0.05)
    users.set_member(SECRET, "vera", Role.VIEWER)
    vera = client("vera")
    withdrawing = threading.Timer(0.3, users.set_member, (SECRET, "vera", None))
    withdrawing.start()
    reply = vera.get("/api/v1/events")
    withdrawing.join()
    assert (reply.status_code, "event: hello" in reply.text) == (200, True)
    assert vera.get("/api/v1/me").status_code == 200


def test_a_reply_ends_when_its_experiment_becomes_private(
    home: Path, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it shows the experiment or its trial: the label comes after the reply began."""

    async def endless(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"line\n"
                await asyncio.sleep(0.05)

        return StreamingResponse(parts())

    monkeypatch.setattr("det_server.access.VALID_SECONDS", 0.05)
    further = [
        Route(f"/api/v1/{each}/{{id:number}}/endless", endless)
        for each in ("experiments", "trials")
    ]
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=further)
    for each in ("experiments", "trials"):
        reply = follow_until_private(app, home, users, f"/api/v1/{each}/{OF_ANN}/endless")
        assert (reply.status, reply.body[:5]) == (200, b"line\n")


@pytest.mark.parametrize(
    ("target", "changes", "status"),
    [
        (f"experiments/{OF_ANN}/slow", "label", 404),
        (f"trials/{OF_ANN}/slow", "label", 404),
        (f"commands?named={OF_ANN}", "label", 404),
        ("slow", "workspace", 503),
        ("slow", "token", 401),
    ],
)
def test_a_reply_that_has_not_begun_says_why_it_ends(
    home: Path,
    users: Users,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    changes: str,
    status: int,
) -> None:
    async def slow(request: Request) -> Response:
        if named := request.query_params.get("named"):
            request.state.named.add(int(named))
        with Store(home) as store:
            if changes == "label":
                store.experiments.update(OF_ANN, labels=[SECRET])
        if changes == "workspace":
            users.set_member(SECRET, "vera", None)
        if changes == "token":
            users.revoke(users.tokens()[-1].id)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("det_server.access.VALID_SECONDS", 0.05)
    if changes == "workspace":
        users.set_member(SECRET, "vera", Role.VIEWER)
    paths = ("experiments/{id:number}/slow", "trials/{id:number}/slow", "commands", "slow")
    further = [Route(f"/api/v1/{each}", slow) for each in paths]
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=further)
    reply = asyncio.run(ask(app, "GET", f"/api/v1/{target}", [HOST, *sign_in(users, "vera")]))
    words = {404: b"; det list shows those that you see", 503: b"try again", 401: b"sign in first"}
    assert (reply.status, words[status] in reply.body) == (status, True), reply.body
    kind = b"trial" if target.startswith("trials") else b"experiment"
    assert status != 404 or b"no %s %d" % (kind, OF_ANN) in reply.body


def follow_until_private(app: ASGIApp, home: Path, users: Users, target: str) -> Reply:
    """Ask for a reply about an experiment of Ann, which becomes private at its first line."""

    def label(name: str) -> None:
        with Store(home) as store:
            store.experiments.update(OF_ANN, labels=[name], state="ACTIVE")

    async def labelling(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            await send(message)
            if message.get("body", b"").strip():
                label(SECRET)

        await app(scope, receive, sending)

    async def follow() -> Reply:
        return await ask(labelling, "GET", target, [HOST, *sign_in(users, "vera")])

    label("open")
    return asyncio.run(follow())


@pytest.mark.parametrize(
    "source",
    ["learn_from: [2]", "source_trial_id: 2", f"source_checkpoint_uuid: {mark_of(OF_BOB)}-x"],
)
def test_an_experiment_learns_nothing_from_a_private_one(
    client: Client, home: Path, source: str
) -> None:
    config = CONFIG.replace("name: single,", f"name: random, max_trials: 2, {source},")
    reply = client("ann").post(f"/api/v1/experiments/{OF_ANN}/fork", json={"config": config})
    assert reply.status_code == 409, reply.text
    assert reply.json()["error"].startswith(
        ("no experiment 2", "no trial 2", "no checkpoint 'mark2-x'")
    )


def test_what_waits_for_a_private_one_does_not_name_it(client: Client, home: Path) -> None:
    with Store(home) as store, store.lock(OF_ANN):
        store.experiments.update(OF_ANN, state="ACTIVE", started=1.0)
        held = store.slots.lease(OF_BOB, 1, ["cpu:0"])
        assert held is not None
        assert store.slots.lease(OF_ANN, 1, ["cpu:0"]) is None
        for path in ("cluster", "queue", "experiments", f"experiments/{OF_ANN}"):
            reply = client("ann").get(f"/api/v1/{path}")
            assert reply.status_code == 200, path
            assert b"by bob" not in reply.content, path
        assert f"experiment {OF_BOB} holds 1" in reply.json()["waiting"]
        named = {
            each["experiment"]: each["name"]
            for each in client("bob").get("/api/v1/queue").json()["running"]
        }
        assert named[OF_BOB] == "by bob"
        store.slots.release(held)
        store.slots.stop_waiting(OF_ANN)


def test_a_trial_from_a_private_one_is_shown_without_it(client: Client, home: Path) -> None:
    with Store(home) as store, store.lock(OF_ANN):
        mine = store.trials.create(OF_ANN, 1, {}, 0, source_checkpoint=f"{mark_of(OF_BOB)}-x").id
    for name, parent in (("ann", None), ("bob", OF_BOB)):
        reply = client(name).get(f"/api/v1/trials/{mine}")
        assert (reply.status_code, reply.json().get("parent")) == (200, parent), reply.text


def test_a_checkpoint_that_a_private_experiment_needs_is_kept(
    client: Client, home: Path, tmp_path: Path
) -> None:
    """Also where who deletes it does not see the other experiment."""
    storage = LocalStorage(home / "checkpoints")
    manifest = write_checkpoint(
        storage, lambda path: (path / "w").write_bytes(b"w"), framework="script", batches=4
    )
    with Store(home) as store:
        with store.lock(OF_ANN):
            run = store.runs.list(OF_ANN)[0].id
            uuid, url = manifest.uuid, storage.url(manifest.uuid)
            store.checkpoints.record(uuid, OF_ANN, run, 4, storage=url, size=1)
        with store.lock(OF_BOB):
            store.trials.create(OF_BOB, 1, {}, 0, source_checkpoint=manifest.uuid)
    reply = client("ann").delete(f"/api/v1/experiments/{OF_ANN}")
    assert reply.status_code == 200, reply.text
    assert reply.json()["kept"] == [manifest.uuid]
    assert storage.exists(manifest.uuid)


def test_a_command_that_changes_tells_of_no_private_checkpoint(app: ASGIApp, users: Users) -> None:
    def told(uuid: str) -> tuple[int, str]:
        argv = ["resume", str(OF_ANN), "--detach", "--checkpoint", uuid]
        target = f"/api/v1/experiments/{OF_ANN}/command"
        headers, body = [HOST, X_DET, *sign_in(users, "ann")], json.dumps({"argv": argv}).encode()
        reply = asyncio.run(ask(app, "POST", target, headers, body))
        return reply.status, reply.body.decode().replace(uuid, "UUID")

    private = f"{mark_of(OF_BOB)}-x"
    assert told(private) == told(private[:-1]) == told("no such")
    assert told(private)[0] == 409


class Wide:
    """What a user sees who does not see each second one of very many experiments."""

    def numbers(self) -> range:
        return range(1, 100_000, 2)


@pytest.mark.process
def test_a_command_sees_any_number_of_experiments(home: Path, users: Users) -> None:
    """Their ranges need 585 KB, and a variable of the environment may have 128 KiB."""

    async def output() -> bytes:
        state = SimpleNamespace(user=SimpleNamespace(name="vera"), look=Wide)
        words = ("list", "--json")
        reply = await Commands(home, {}).start(
            Request({"type": "http", "state": vars(state)}), words, reads=True
        )
        assert isinstance(reply, StreamingResponse)
        return b"".join([bytes(part) async for part in reply.body_iterator])

    found = asyncio.run(output()).decode()
    assert '{"status":0}' in found, found
    assert mark_of(OF_ANN) in found
    assert mark_of(OF_BOB) not in found


@pytest.mark.process
def test_commands_find_nothing_of_a_private_experiment(app: ASGIApp, users: Users) -> None:
    def output(name: str, *words: str) -> str:
        target = f"/api/v1/commands?argv={quote(json.dumps(words))}"
        headers = [HOST, *sign_in(users, name)]
        return asyncio.run(ask(noting, "GET", target, headers)).body.decode()

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        named.append(scope["state"]["named"])

    named: list[set[int]] = []
    id, mark = str(OF_BOB), mark_of(OF_BOB)
    assert mark in output("bob", "show", id)
    # Its reply would end when this experiment becomes private.
    assert named == [{OF_BOB}]
    for words in (
        ("list", "--json"),
        ("show", id),
        ("compare", str(OF_ANN), id),
        ("logs", id),
        ("metrics", id),
        ("checkpoint", "list", id),
        ("checkpoint", "show", f"{mark}-x"),
        ("queue",),
    ):
        found = output("vera", *words)
        assert mark not in found.replace(f"no checkpoint '{mark}-x'", ""), words
        # However slow it is, it ends as for an experiment that does not exist.
        assert OF_BOB not in named[-1]
        assert '"status"' in found
    assert mark_of(OF_ANN) in output("vera", "show", str(OF_ANN))


def test_what_is_no_workspace_or_member_is_refused(users: Users) -> None:
    for wrong in ("", "x" * 201, "a\nb", "\x1b[31m"):
        with pytest.raises(DetError, match="is no label"):
            users.set_workspace(wrong, private=True)
    with pytest.raises(DetError, match="no workspace is called 'none'"):
        users.set_member("none", "ann", Role.VIEWER)
    with pytest.raises(DetError, match="no user is called 'nobody'"):
        users.set_member(SECRET, "nobody", Role.VIEWER)
    with pytest.raises(DetError, match="ann is no member of secret plans"):
        users.set_member(SECRET, "ann", None)
