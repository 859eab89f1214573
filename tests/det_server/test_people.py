"""Admins change users on the page, and everybody sees and ends their own sessions and tokens."""

from __future__ import annotations

import pytest
from tests.det_server.conftest import PASSWORD, Client

from det_core.errors import DetError
from det_server import Role, Users

USERS, TOKENS = "/api/v1/users", "/api/v1/tokens"


def test_admin_lists_users_and_changes_a_role(client: Client, users: Users) -> None:
    root = client("root")
    listed = root.get(USERS).json()["users"]
    assert [(each["name"], each["role"], each["disabled"]) for each in listed] == [
        ("ann", "editor", False),
        ("bob", "editor", False),
        ("root", "admin", False),
        ("vera", "viewer", False),
    ]
    ann = client("ann")
    told = root.patch(f"{USERS}/ann", json={"role": "viewer"}).json()["users"]
    assert told[0]["role"] == "viewer"
    # The next request has the new role.
    assert ann.get("/api/v1/me").json()["role"] == "viewer"


def test_admin_adds_a_user_who_signs_in(client: Client, users: Users) -> None:
    root = client("root")
    given = {"name": "new", "password": PASSWORD, "role": "viewer"}
    assert client("ann").post(USERS, json=given).status_code == 403
    reply = root.post(USERS, json=given)
    assert (reply.status_code, len(reply.json()["users"])) == (201, 5)
    assert users.sign_in("new", PASSWORD) is not None
    assert client("new").get("/api/v1/me").json()["role"] == "viewer"
    before = users.accounts()
    for wrong, status in (
        ({}, 409),
        ({"name": "a b"}, 409),
        ({"password": "x"}, 409),
        ({"role": "x"}, 400),
    ):
        assert root.post(USERS, json={**given, **wrong}).status_code == status
    assert users.accounts() == before


def test_disabled_user_is_signed_out_until_enabled(client: Client, users: Users) -> None:
    root, ann = client("root"), client("ann")
    session = users.sign_in("ann", PASSWORD)
    assert session is not None
    assert root.patch(f"{USERS}/ann", json={"disabled": True}).status_code == 200
    assert ann.get("/api/v1/me").status_code == 401
    assert users.sign_in("ann", PASSWORD) is None
    assert root.patch(f"{USERS}/ann", json={"disabled": False}).status_code == 200
    # The API token is valid again, and the session has ended.
    assert ann.get("/api/v1/me").status_code == 200
    assert users.find(session.text) is None
    assert users.sign_in("ann", PASSWORD) is not None


@pytest.mark.parametrize("given", [{"disabled": True}, {"role": "viewer"}, {"role": "editor"}])
def test_last_admin_stays_one(client: Client, users: Users, given: dict[str, object]) -> None:
    users.add("second", Role.ADMIN, PASSWORD)
    users.change("second", disabled=True)
    root = client("root")
    reply = root.patch(f"{USERS}/root", json=given)
    assert (reply.status_code, "only admin" in reply.json()["error"]) == (409, True)
    assert root.get("/api/v1/me").json()["role"] == "admin"
    with pytest.raises(DetError, match="only admin"):
        users.remove("root")


def test_admin_sets_a_quota_and_sees_what_is_used(client: Client, users: Users) -> None:
    users.set_used({"ann": 3000})
    root = client("root")
    (ann, *_) = root.get(USERS).json()["users"]
    assert (ann["used"], ann["quota"]) == (3000, None)
    (ann, *_) = root.patch(f"{USERS}/ann", json={"quota": 2000}).json()["users"]
    assert (ann["used"], ann["quota"]) == (3000, 2000)
    with pytest.raises(DetError, match="of a quota of"):
        users.check_quota("ann")
    root.patch(f"{USERS}/ann", json={"role": "viewer"})
    assert users.accounts()[0].quota == 2000
    root.patch(f"{USERS}/ann", json={"quota": None})
    users.check_quota("ann")
    assert client("bob").patch(f"{USERS}/bob", json={"quota": None}).status_code == 403


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("none", {"role": "viewer"}, 409),
        ("none", {"quota": 1}, 409),
        ("ann", {"role": "king"}, 400),
        ("ann", {"quota": -1}, 400),
        ("ann", {"x": 1}, 400),
    ],
)
def test_wrong_changes_of_users_are_refused(
    client: Client, users: Users, path: str, given: dict[str, object], status: int
) -> None:
    before = users.accounts()
    reply = client("root").patch(f"{USERS}/{path}", json=given)
    assert (reply.status_code, {*reply.json()}) == (status, {"error"})
    assert users.accounts() == before


@pytest.mark.parametrize("name", ["vera", "ann"])
def test_everybody_ends_their_own_tokens_and_no_others(
    client: Client, users: Users, name: str
) -> None:
    mine, others = users.make_token(name), users.make_token("bob")
    own = client(name)
    listed = own.get(TOKENS).json()["tokens"]
    assert {each["user"] for each in listed} == {name}
    assert mine.id in [each["id"] for each in listed]
    assert own.delete(f"{TOKENS}/{others.id}").status_code == 404
    assert own.delete(f"{TOKENS}/x").status_code == 404
    assert own.delete(f"{TOKENS}/{mine.id}").status_code == 200
    assert users.find(mine.text) is None
    assert users.find(others.text) is not None
    assert client("root").delete(f"{TOKENS}/{others.id}").status_code == 200
    assert users.find(others.text) is None
