"""Sign-in, sessions and tokens, and what is refused before anybody is asked."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.det_server.conftest import OF_ANN, PASSWORD, Client

from det_server import Users, __version__
from det_server.app import _SIGN_IN_BYTES
from det_server.limits import BY_ADDRESS, BY_NAME, SECONDS, Attempts
from det_server.users import DAY, LONGEST_PASSWORD, SESSION_DAYS

ME, SESSION, COOKIE = "/api/v1/me", "/api/v1/session", "det_server_443"
BROWSER = {"origin": "https://det.example", "sec-fetch-site": "same-origin", "x-det": "1"}


def sign_in(client: TestClient, name: str = "ann", password: str = PASSWORD) -> int:
    given = {"name": name, "password": password}
    return client.post(SESSION, json=given, headers=BROWSER).status_code


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Two clocks that stand still until they are set."""
    clocks = {"time": time.time(), "monotonic": 1000.0}
    monkeypatch.setattr("det_server.users.time.time", lambda: clocks["time"])
    monkeypatch.setattr("det_server.users.time.monotonic", lambda: clocks["monotonic"])
    return clocks


def test_attempts_take_no_memory_and_a_network_is_one_address() -> None:
    attempts = Attempts()
    attempts.begin("x" * 1_000_000, "::1")
    assert all(len(text) <= 64 for _, text in attempts._failed)
    for n in range(BY_ADDRESS):
        assert not attempts.begin(f"user{n}", f"2001:db8::{n:x}")
    assert attempts.begin("another", "2001:db8::ffff")


def test_session_has_a_strict_cookie_and_a_token(client: Client) -> None:
    browser = client()
    reply = browser.post(SESSION, json={"name": "ann", "password": PASSWORD}, headers=BROWSER)
    assert reply.status_code == 201, reply.text
    assert set(reply.json()) == {"name", "role", "token", "expires"}
    assert abs(reply.json()["expires"] - time.time() - SESSION_DAYS * DAY) < 600
    said = reply.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    assert "Secure" not in said, "this server has no TLS"
    by_cookie = browser.get(ME).json()
    assert by_cookie == {"name": "ann", "role": "editor", "version": __version__}
    given = {"authorization": f"Bearer {reply.json()['token']}"}
    assert client().get(ME, headers=given).json() == by_cookie


def test_with_tls_the_cookie_is_secure(client: Client) -> None:
    reply = client(secure=True).post(
        SESSION, json={"name": "ann", "password": PASSWORD}, headers=BROWSER
    )
    assert "Secure" in reply.headers["set-cookie"]


def test_signing_out_ends_the_session(client: Client) -> None:
    browser = client()
    assert sign_in(browser) == 201
    given = {"cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
    assert browser.delete(SESSION, headers=BROWSER).status_code == 204
    assert COOKIE not in browser.cookies
    assert client().get(ME, headers=given).status_code == 401


@pytest.mark.parametrize(
    ("name", "password"),
    [("ann", "wrong"), ("nobody", PASSWORD), ("", ""), ("x" * 10_000, "\0"), ("ann", "\0" * 2000)],
)
def test_wrong_name_and_wrong_password_read_the_same(
    client: Client, users: Users, name: str, password: str
) -> None:
    reply = client().post("/login", data={"name": name, "password": password}, headers=BROWSER)
    assert reply.status_code == 401
    assert "name or the password is wrong" in reply.text
    assert users.tokens() == []


def test_an_unknown_name_is_hashed_as_a_known_one(users: Users) -> None:
    """Both times are dominated by argon2, so they are compared by what is done."""
    assert users._nobody.split("$")[1:4] == _stored(users, "ann").split("$")[1:4]


def test_a_password_for_one_sign_in_is_good_once(client: Client, users: Users) -> None:
    users.add("new", users.everybody()[0].role, PASSWORD, once=True)
    assert sign_in(client(), "new") == 201
    assert sign_in(client(), "new") == 401
    users.set_password("new", "another password")
    assert [sign_in(client(), "new", "another password") for _ in range(2)] == [201, 201]


def test_a_new_password_ends_sessions_and_keeps_tokens(client: Client, users: Users) -> None:
    browser, program = client(), client("ann")
    assert sign_in(browser) == 201
    users.set_password("ann", "another password")
    assert browser.get(ME).status_code == 401
    assert program.get(ME).status_code == 200


def test_a_revoked_token_is_refused_at_once(client: Client, home: Path, users: Users) -> None:
    program = client("ann")
    assert program.get(ME).status_code == 200
    # As `det server token revoke` does in another process.
    Users(home).revoke(users.tokens()[0].id)
    assert program.get(ME).status_code == 401


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_stream_ends_with_its_token(
    client: Client,
    users: Users,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """The stream of events never ends by itself, so this test would never end either."""
    monkeypatch.setattr("det_server.access.VALID_SECONDS", 0.05)
    program = client("ann")

    def end() -> None:
        if how == "revoked":
            users.revoke(users.tokens()[0].id)
        else:
            users._database.run("UPDATE token SET expires = ?", (time.time(),))

    ending = threading.Timer(0.2, end)
    ending.start()
    reply = program.get("/api/v1/events")
    ending.join()
    assert (reply.status_code, "event: hello" in reply.text) == (200, True)
    assert program.get(ME).status_code == 401


def test_a_sign_in_is_short(client: Client) -> None:
    """Anybody may send one, so a body takes little memory."""
    for path in ("/login", SESSION):
        reply = client().post(path, content=b"x" * (_SIGN_IN_BYTES + 1), headers=BROWSER)
        assert reply.status_code == 413
    longest = "\U0001f600" * LONGEST_PASSWORD
    given = {"name": "ann", "password": longest}
    assert client().post("/login", data=given, headers=BROWSER).status_code == 401
    body = json.dumps(given)
    assert client().post(SESSION, content=body, headers=BROWSER).status_code == 401


def test_a_removed_user_is_signed_out(client: Client, users: Users) -> None:
    program = client("ann")
    users.remove("ann")
    assert program.get(ME).status_code == 401
    assert users.tokens() == []


def test_sessions_and_tokens_expire(client: Client, users: Users, clock: dict[str, float]) -> None:
    browser, program = client(), client("ann")
    assert sign_in(browser) == 201
    clock["time"] += SESSION_DAYS * DAY - 1
    assert browser.get(ME).status_code == 200
    clock["time"] += 2
    assert browser.get(ME).status_code == 401
    assert program.get(ME).status_code == 200
    clock["time"] += 365 * DAY
    assert program.get(ME).status_code == 401


def test_a_clock_set_back_extends_no_session(
    client: Client, home: Path, users: Users, clock: dict[str, float]
) -> None:
    browser = client()
    clock["time"] += 100
    assert sign_in(browser) == 201
    clock["time"] -= 5 * 365 * DAY
    clock["monotonic"] += SESSION_DAYS * DAY - 1
    assert browser.get(ME).status_code == 200
    clock["monotonic"] += 2
    assert browser.get(ME).status_code == 401
    given = users.make_token("ann", 1)
    assert users.find(given.text)
    # A server that starts again goes on from the latest time that it knew.
    again = Users(home)
    assert again.find(given.text)
    assert again.now() >= given.expires - DAY - 60
    clock["monotonic"] += DAY + 61
    assert again.find(given.text) is None


def test_too_many_attempts_for_a_name_are_refused(client: Client) -> None:
    stranger = client()
    assert [sign_in(stranger, password="wrong") for _ in range(BY_NAME)] == [401] * BY_NAME
    reply = stranger.post(SESSION, json={"name": "ann", "password": PASSWORD}, headers=BROWSER)
    assert reply.status_code == 429
    assert 0 < int(reply.headers["retry-after"]) <= SECONDS + 1
    assert "too many attempts" in reply.json()["error"]
    assert sign_in(stranger, "bob") == 201


def test_attempts_are_limited_by_address_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, now = Attempts(), [0.0]
    monkeypatch.setattr("det_server.limits.time.monotonic", lambda: now[0])
    assert not any(attempts.begin(f"user{n}", "here") for n in range(BY_ADDRESS))
    assert attempts.begin("another", "here") == SECONDS
    assert attempts.begin("another", "there") == 0
    now[0] = SECONDS + 1
    assert attempts.begin("another", "here") == 0


def test_who_signs_in_well_is_never_limited() -> None:
    attempts = Attempts()
    for _ in range(10 * BY_ADDRESS):
        assert attempts.begin("ann", "here") == 0
        attempts.succeed("ann", "here")


def test_behind_a_proxy_its_own_address_counts(client: Client) -> None:
    """A client can invent addresses, but the proxy adds the true one last."""
    stranger = client(behind_proxy=True)
    statuses = []
    for number in range(BY_ADDRESS + 1):
        given = {**BROWSER, "x-forwarded-for": f"10.0.0.{number}, 192.0.2.7"}
        body = {"name": f"user{number}", "password": "wrong"}
        statuses.append(stranger.post(SESSION, json=body, headers=given).status_code)
    assert statuses == [401] * BY_ADDRESS + [429]


def test_a_page_leads_to_the_sign_in_and_back(client: Client) -> None:
    browser = client()
    reply = browser.get("/e/1")
    assert (reply.status_code, reply.headers["location"]) == (303, "/login?next=/e/1")
    form = browser.get("/login?next=/e/1")
    assert 'name="next" value="/e/1"' in form.text
    assert "trusted with these rights" in form.text
    assert form.headers["referrer-policy"] == "same-origin"
    fields = {"name": "ann", "password": PASSWORD, "next": "/e/1"}
    given = {"origin": "https://det.example"}
    done = browser.post("/login", data=fields, headers=given)
    assert (done.status_code, done.headers["location"]) == (303, "/e/1")
    assert browser.get("/").status_code in (200, 503)
    assert "signed in as ann" in browser.get("/login").text
    assert browser.post("/login", data={"out": "1"}, headers=given).status_code == 303
    assert browser.get(ME).status_code == 401


@pytest.mark.parametrize(
    "leads_to", ["https://evil.example/", "//evil.example", "/\\evil.example", "/\n/x", "x", ""]
)
def test_the_sign_in_leads_to_no_other_site(client: Client, leads_to: str) -> None:
    fields = {"name": "ann", "password": PASSWORD, "next": leads_to}
    done = client().post("/login", data=fields, headers={"origin": "https://det.example"})
    assert (done.status_code, done.headers["location"]) == (303, "/")


def test_a_form_shows_no_markup_of_others(client: Client) -> None:
    assert "<script>" not in client().get('/login?next=/"><script>').text


def test_a_link_from_another_site_asks_again_by_itself(client: Client) -> None:
    """Browsers send a strict cookie with what this site asks for only."""
    followed = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    reply = client().get("/e/1", headers=followed)
    assert (reply.status_code, 'http-equiv="refresh"' in reply.text) == (200, True)


@pytest.mark.parametrize(
    "given",
    [
        {"origin": "https://evil.example", "x-det": "1"},
        {"origin": "null", "x-det": "1"},
        {"sec-fetch-site": "cross-site", "x-det": "1"},
        {"sec-fetch-site": "same-site", "x-det": "1"},
        {},
    ],
)
def test_what_another_site_asks_for_is_refused(client: Client, given: dict[str, str]) -> None:
    browser = client()
    assert sign_in(browser) == 201
    for method, path in (
        ("POST", f"/api/v1/experiments/{OF_ANN}/kill"),
        ("PATCH", f"/api/v1/experiments/{OF_ANN}"),
        ("DELETE", SESSION),
        ("POST", SESSION),
        ("POST", "/login"),
    ):
        assert browser.request(method, path, headers=given).status_code == 403, path
    assert browser.get(ME).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "det.example:1", ""])
def test_a_foreign_host_is_refused_with_a_token_too(client: Client, host: str) -> None:
    reply = client("ann").get(ME, headers={"host": host})
    assert reply.status_code == 421
    assert "det server start --allow-host" in reply.json()["error"]


@pytest.mark.parametrize("name", [None, "ann", "root"])
def test_a_body_of_10_mb_is_refused(client: Client, name: str | None) -> None:
    big = b"x" * 10_000_000
    for path in (SESSION, "/login", f"/api/v1/experiments/{OF_ANN}/fork"):
        reply = client(name).post(path, content=big, headers=BROWSER)
        assert reply.status_code == (401 if name is None and "fork" in path else 413)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"name": 1}', b"\xff", b'{"name":"ann"}'])
def test_a_sign_in_that_is_no_json_is_refused(client: Client, body: bytes) -> None:
    assert client().post(SESSION, content=body, headers=BROWSER).status_code == 400


def _stored(users: Users, name: str) -> str:
    row = users._database.row("SELECT password FROM user WHERE name = ?", (name,))
    assert row is not None
    return str(row[0])
