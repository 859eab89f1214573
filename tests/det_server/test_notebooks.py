"""Notebooks on a server: who reaches one, and what is passed on to it, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from starlette.websockets import WebSocketDisconnect
from tests.det_server.asgi import HOST, X_DET, ask, sign_in
from tests.det_server.conftest import OF_ANN, OF_BOB
from tests.det_server.notebook import add_notebook

from det_core.errors import DetError
from det_driver.config import load
from det_driver.store import ExperimentState, Store
from det_node.task import NOTEBOOK, task_words
from det_server import Users, notebooks
from det_server.proxy import _leaves, confine

ORIGIN = (b"origin", b"https://det.example")
FOREIGN = (b"origin", b"https://evil.example")
SAME_SITE, OTHER_SITE = (b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"cross-site")
FOLLOWED = [OTHER_SITE, (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")]


@pytest.fixture
def notebook(home: Path, users: Users) -> int:
    """A notebook of ann that does not answer."""
    return add_notebook(home, users)[0]


def status(app: ASGIApp, method: str, path: str, *headers: tuple[bytes, bytes]) -> int:
    return asyncio.run(ask(app, method, path, [HOST, *headers])).status


def test_only_its_owner_reaches_a_notebook(app: ASGIApp, users: Users, notebook: int) -> None:
    inner = f"/notebooks/{notebook}/api/kernels"
    # It is asked, and does not answer.
    assert status(app, "GET", inner, *sign_in(users, "ann")) == 503
    assert status(app, "POST", inner, *sign_in(users, "ann")) == 503
    for name in ("bob", "vera", "root"):
        assert status(app, "GET", inner, *sign_in(users, name)) == 403
        assert status(app, "POST", inner, *sign_in(users, name)) == 403
    assert status(app, "GET", inner) == 401
    assert status(app, "POST", inner, ORIGIN) == 401
    # Its first page leads to the page to sign in.
    assert status(app, "GET", f"/notebooks/{notebook}/") == 303


def test_an_owner_who_is_now_a_viewer_is_refused(app: ASGIApp, users: Users, home: Path) -> None:
    id, _ = add_notebook(home, users, "vera")
    assert status(app, "GET", f"/notebooks/{id}/lab", *sign_in(users, "vera")) == 403


@pytest.mark.parametrize(
    "path", [str(OF_ANN), str(OF_BOB), "99", "0", "x", "9" * 40, "%D9%A3", "", "-1", "4x"]
)
def test_there_is_no_notebook_elsewhere(
    app: ASGIApp, users: Users, notebook: int, path: str
) -> None:
    assert status(app, "GET", f"/notebooks/{path}/lab", *sign_in(users, "ann")) == 404


def test_a_hidden_notebook_is_like_none(
    app: ASGIApp, users: Users, home: Path, notebook: int
) -> None:
    users.set_workspace("closed", private=True)
    with Store(home) as store:
        store.experiments.update(notebook, labels=["closed"])
    assert status(app, "GET", f"/notebooks/{notebook}/lab", *sign_in(users, "bob")) == 404


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", [FOREIGN], 403),
        ("POST", [FOREIGN], 403),
        ("GET", [OTHER_SITE], 403),
        ("GET", FOLLOWED, 403),
        ("POST", [], 403),
        ("POST", [X_DET], 503),
        ("POST", [ORIGIN], 503),
        ("DELETE", [SAME_SITE], 503),
        ("GET", [(b"service-worker", b"script")], 403),
    ],
)
def test_another_site_is_refused(
    app: ASGIApp,
    users: Users,
    notebook: int,
    method: str,
    headers: list[tuple[bytes, bytes]],
    expected: int,
) -> None:
    """A browser signs requests in by its cookie."""
    cookie = b"det_server_443=" + sign_in(users, "ann")[0][1].removeprefix(b"Bearer ")
    path = f"/notebooks/{notebook}/api/contents"
    assert status(app, method, path, (b"cookie", cookie), *headers) == expected


def test_a_link_to_a_notebook_may_be_followed(app: ASGIApp, notebook: int) -> None:
    """Its page asks again, as the browser has not sent the cookie."""
    assert status(app, "GET", f"/notebooks/{notebook}/", *FOLLOWED) == 200


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/notebooks/{}/api/kernels/1/channels", {"origin": "https://evil.example"}, 403),
        ("/notebooks/{}/api/kernels/1/channels", {}, 403),
        ("/notebooks/{}/api/kernels/1/channels", {"origin": "https://det.example"}, 503),
        ("/api/v1/events", {"origin": "https://det.example"}, 404),
        ("/", {"origin": "https://det.example"}, 404),
    ],
)
def test_a_websocket_says_where_it_comes_from(
    app: ASGIApp, users: Users, notebook: int, path: str, headers: dict[str, str], expected: int
) -> None:
    token = users.make_token("ann").text
    client = TestClient(app, "https://det.example", cookies={"det_server_443": token})
    assert refused(client, path.format(notebook), headers) == expected


def test_a_websocket_needs_the_right_session(app: ASGIApp, users: Users, notebook: int) -> None:
    path = f"/notebooks/{notebook}/api/kernels/1/channels"
    client = TestClient(app, "https://det.example")
    assert refused(client, path, {"origin": "https://det.example"}) == 401
    for name, expected in {"bob": 403, "root": 403, "ann": 503}.items():
        token = users.make_token(name).text
        assert refused(client, path, {"authorization": f"Bearer {token}"}) == expected


def refused(client: TestClient, path: str, headers: dict[str, str]) -> int:
    """Return the status with which a WebSocket is refused."""
    with (
        pytest.raises(WebSocketDisconnect) as refusal,
        client.websocket_connect(f"wss://det.example{path}", headers=headers),
    ):
        pass
    status: int = refusal.value.status_code  # type: ignore[attr-defined]
    return status


def test_what_a_notebook_does_is_said(
    app: ASGIApp, users: Users, home: Path, notebook: int
) -> None:
    client = TestClient(app, "https://det.example")
    client.headers["authorization"] = f"Bearer {users.make_token('bob').text}"
    address = f"/api/v1/experiments/{notebook}/notebook"
    assert client.get(address).json() == {
        "path": f"/notebooks/{notebook}/",
        "state": "ACTIVE",
        "ready": False,
        "waits": False,
        "reason": None,
    }
    with Store(home) as store:
        (trial,) = store.trials.list(notebook)
        (run,) = store.runs.list(trial.id)
        (run.log_dir / "scratch" / "notebook.json").write_text("{}")
    assert client.get(address).json()["ready"] is True
    with Store(home) as store, store.lock(notebook):
        store.experiments.update(notebook, state=ExperimentState.CANCELED)
    assert client.get(address).json()["ready"] is False
    assert "is no notebook" in client.get(f"/api/v1/experiments/{OF_ANN}/notebook").json()["error"]


def test_what_is_not_installed_is_named(
    home: Path, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "entrypoint": task_words(NOTEBOOK, ["unix"], directory=None),
        "searcher": {"name": "single", "metric": ""},
    }
    config = load(content).config
    there: set[str] = set()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in there or None)
    with pytest.raises(DetError, match=r"^this server has no notebooks; .* and start it again$"):
        notebooks.check(config, "local")
    there |= {"httpx2", "websockets"}
    with pytest.raises(DetError, match=r"JupyterLab is not installed .*pip install jupyterlab$"):
        notebooks.check(config, "local")
    there.add("jupyterlab")
    notebooks.check(config, "local")
    with pytest.raises(DetError, match="runs on the server's machine, and not by slurm"):
        notebooks.check(config, "slurm")
    content["entrypoint"] = "python3 train.py"
    there.clear()
    notebooks.check(load(content).config, "local")


@pytest.mark.parametrize(
    ("location", "leaves"),
    [
        ("", False),
        ("/notebooks/3/lab?x=1", False),
        ("lab", False),
        ("https://det.example/notebooks/3/tree", False),
        ("https://docs.jupyter.org/", False),
        ("/api/v1/experiments", True),
        ("/notebooks/4/lab", True),
        ("/notebooks/3", True),
        ("../../api/v1/me", True),
        ("/notebooks/3/../../api/v1/me", True),
        ("/notebooks/3/%2e%2e/%2e%2e/api/v1/me", True),
        ("//det.example/api/v1/me", True),
        ("https://DET.example/api/v1/me", True),
        ("http:/api/v1/me", True),
        ("\\api\\v1\\me", True),
        ("/\t/det.example/api", True),
        (" /api/v1/me", True),
    ],
)
def test_redirections_out_of_a_notebook_are_found(location: str, leaves: bool) -> None:
    scope = {"path": "/notebooks/3/x", "headers": [HOST]}
    assert _leaves(location, scope, 3) is leaves


def test_scripts_of_a_notebook_reach_its_addresses_only() -> None:
    policy = dict(
        each.split(" ", 1) for each in confine("a:8080", "/notebooks/3/", secure=False).split("; ")
    )
    assert policy["connect-src"] == (
        "http://a:8080/notebooks/3/ ws://a:8080/notebooks/3/ data: blob:"
    )
    assert policy["default-src"] == "'none'"
    assert {policy["form-action"], policy["base-uri"]} == {"http://a:8080/notebooks/3/"}
    secure = confine("a", "/notebooks/3/", secure=True)
    assert "connect-src https://a/notebooks/3/ wss://a/notebooks/3/ data: blob:" in secure
