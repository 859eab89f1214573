"""What the server refuses, and what it bounds.

A test for each item, against a real server in a process.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
import urllib.request
from pathlib import Path

import pytest
from tests.det_web.conftest import CONFIG, SCRIPT, Server, det, start, stop

from det_web.guard import COOKIE_SECONDS, Keys
from det_web.serve import listening

pytestmark = pytest.mark.process


def test_foreign_host_name_is_refused_first(server: Server) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1:1", ""):
        assert server.ask("/api/v1/about", headers={"Host": host}).status == 421
        assert server.ask("/", headers={"Host": host, "Cookie": None}).status == 421
    assert server.ask("/api/v1/about", headers={"Host": None}).status in (400, 421)
    assert server.ask("/api/v1/about", headers={"Host": f"LOCALHOST:{server.port}"}).status == 200


def test_what_another_site_asks_for_is_refused(server: Server) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    ):
        assert server.ask("/api/v1/experiments", headers=dict(headers)).status == 403, headers
        assert (
            server.ask("/api/v1/experiments/1/kill", "POST", headers=dict(headers)).status == 403
        ), headers
    assert (
        server.ask("/api/v1/about", headers={"Origin": f"http://127.0.0.1:{server.port}"}).status
        == 200
    )


def test_cross_site_link_opens_a_view_only_as_a_page(server: Server) -> None:
    followed: dict[str, str | None] = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Cookie": None,
    }
    assert server.ask("/e/1", headers={**followed, "Sec-Fetch-Dest": "document"}).status in (
        200,
        503,
    )
    assert server.ask("/e/1", headers={**followed, "Sec-Fetch-Dest": "iframe"}).status == 403
    assert (
        server.ask("/login?token=x", headers={**followed, "Sec-Fetch-Dest": "document"}).status
        == 401
    )
    assert (
        server.ask("/login?token=x", headers={**followed, "Sec-Fetch-Dest": "iframe"}).status == 403
    )


@pytest.mark.parametrize("cookie", [None, "", "det_1=x", "det_PORT=wrong", "; ;=;\x7f"])
def test_nothing_is_told_without_the_cookie(server: Server, cookie: str | None) -> None:
    given = cookie.replace("PORT", str(server.port)) if cookie else cookie
    for path in (
        "/api/v1/about",
        "/api/v1/events",
        "/api/v1/openapi.json",
        "/metrics",
        "/api/v1/nothing",
    ):
        answer = server.ask(path, headers={"Cookie": given})
        assert (answer.status, "open the address that det ui printed" in answer.json["error"]) == (
            401,
            True,
        )


def test_address_signs_in_once_with_a_strict_http_only_cookie(made: Path) -> None:
    server = start(made)
    try:
        assert server.ask(f"/login?token={server.token}").status == 401, "it has been used"
        assert server.ask("/login?token=wrong").status == 401
        assert server.process.stdout is not None
        again = re.search(r"token=(\S+)", server.process.stdout.readline())
        assert again is not None
        cookie = server.ask(f"/login?token={again[1]}").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert f"Max-Age={30 * 86400}" in cookie
    finally:
        stop(server)


def test_a_browser_stays_signed_in_when_the_server_starts_again(made: Path) -> None:
    first = start(made)
    cookie = first.cookie.partition("=")[2]
    stop(first)
    again = start(made)
    try:
        for given, status in (
            (cookie, 200),
            (f"9{cookie}", 401),
            (cookie.replace(".", "1."), 401),
            ("9" * 10, 401),
        ):
            named = {"Cookie": f"det_{again.port}={given}"}
            assert again.ask("/api/v1/about", headers=dict(named)).status == status
    finally:
        stop(again)


def test_a_cookie_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(lambda token: None, "key")
    cookie = keys.cookie(keys.token)
    assert cookie is not None
    assert keys.fits(cookie)
    late = time.time() + COOKIE_SECONDS + 1
    monkeypatch.setattr("det_web.guard.time.time", lambda: late)
    assert not keys.fits(cookie)


def test_file_that_only_its_owner_reads_leads_to_the_sign_in(made: Path) -> None:
    """A browser is given its path, as every user of a machine reads command lines."""
    server = start(made)
    file = made / f"ui-{server.port}.html"
    try:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = re.search(r"url=http://127.0.0.1:\d+/login\?token=([\w-]+)", file.read_text())
        assert token is not None
        assert token[1] != server.token, "that one has been used"
        assert server.ask(f"/login?token={token[1]}").status == 303
        assert token[1] not in file.read_text()
    finally:
        stop(server)
    assert not file.exists()


def test_kept_page_runs_in_the_background_until_stopped(made: Path) -> None:
    addresses = []
    try:
        for _ in range(2):
            kept = det(made, made, "ui", "--keep", "--port", "0", "--no-browser")
            found = re.search(
                r"http://127.0.0.1:(\d+)/login\?token=\S+(?=; it stays until: det ui --stop)",
                kept.stdout,
            )
            assert found, kept.stderr
            addresses.append(found)
            with urllib.request.urlopen(found[0], timeout=30) as answer:
                assert answer.status in (200, 503)
        assert addresses[0][1] == addresses[1][1], "the second command found the first one's page"
        assert addresses[0][0] != addresses[1][0], "an address is good once"
        assert "token" not in (made / "ui.log").read_text()
    finally:
        stopped = det(made, made, "ui", "--stop")
    assert stopped.returncode == 0, stopped.stderr
    again = det(made, made, "ui", "--stop")
    assert (again.returncode, "det ui --keep leaves one there" in again.stderr) == (2, True)


@pytest.mark.thorough
def test_kept_page_and_sign_in_survive_searches_and_a_restart(tmp_path: Path) -> None:
    """What one finds in the morning.

    The page, the finished search, and a browser that is signed in.
    """
    home = tmp_path / "home"
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "const.yaml").write_text(CONFIG)
    try:
        first = _kept(home, 0)
        first.sign_in()
        done = det(home, tmp_path, "run", "const.yaml", "-q")
        assert done.returncode == 0, done.stderr
        assert first.get("/experiments/1")["state"] == "COMPLETED"
        assert det(home, tmp_path, "ui", "--stop").returncode == 0
        with pytest.raises(ConnectionError):
            first.ask("/api/v1/experiments")
        again = _kept(home, first.port)
        again.cookie = first.cookie
        assert again.get("/experiments/1")["state"] == "COMPLETED"
    finally:
        det(home, tmp_path, "ui", "--stop")


def _kept(home: Path, port: int) -> Server:
    """Leave a page in the background; nobody is signed in to it."""
    kept = det(home, home.parent, "ui", "--keep", "--port", str(port), "--no-browser")
    found = re.search(r":(\d+)/login\?token=(\S+);", kept.stdout)
    assert found, kept.stderr
    return Server(home, None, int(found[1]), found[2])  # type: ignore[arg-type]


def test_program_signs_in_with_the_owners_key_file(server: Server) -> None:
    file = server.home / "ui.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = {"Cookie": None, "Authorization": f"Bearer {file.read_text()}"}
    assert server.ask("/metrics", headers=dict(key)).status == 200
    assert (
        server.ask("/metrics", headers={"Cookie": None, "Authorization": "Bearer x"}).status == 401
    )


def test_what_changes_anything_carries_a_header_of_ours(server: Server) -> None:
    for method, path in (
        ("POST", "/experiments/1/kill"),
        ("PATCH", "/experiments/1"),
        ("DELETE", "/experiments/1"),
    ):
        answer = server.ask(f"/api/v1{path}", method, {}, headers={"X-Det": None})
        assert (answer.status, "X-Det: 1" in answer.json["error"]) == (403, True)
    assert server.get("/experiments/1")["name"] == "small"


def test_no_response_allows_foreign_scripts_or_framing(server: Server) -> None:
    for path in (
        "/",
        "/api/v1/about",
        "/static/app.js",
        "/nothing",
        "/api/v1/experiments/99",
        "/api/v1/experiments/1/code/evil.html",
    ):
        headers = server.ask(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
            "nosniff",
            "no-referrer",
        )
    refused = server.ask("/", headers={"Host": "evil.example"}).headers
    assert "content-security-policy" in refused


def test_user_content_with_a_script_is_never_served_as_html(server: Server) -> None:
    """It is in a log, a note, the name of a metric or a file."""
    paths = (
        "/trials/1/log",
        "/experiments/1",
        "/trials/1",
        "/experiments/1/code/evil.html",
        "/trials/1/log/search?text=alert",
    )
    for path in paths:
        answer = server.ask(f"/api/v1{path}")
        assert b"<script>" in answer.body or b"<b>odd</b>" in answer.body
        assert answer.headers["content-type"].partition(";")[0] in (
            "application/json",
            "text/plain",
            "application/x-ndjson",
        )


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..%2f..%2f..%2fui.key",
            "..%2Fexperiment.db",
            "%2e%2e/experiment.db",
            "../experiment.db",
            "%2fetc%2fpasswd",
        ),
        *(
            "/etc/passwd",
            "x/..%2f..%2fexperiment.db",
            "link",
            "folder/passwd",
            "train.py%00",
            "%ff",
            ".",
        ),
    ],
)
def test_a_path_leads_to_the_code_and_nowhere_else(server: Server, path: str) -> None:
    code = server.home / "experiments/1/code"
    (code / "link").symlink_to("/etc/passwd")
    (code / "folder").symlink_to("/etc")
    try:
        answer = server.ask(f"/api/v1/experiments/1/code/{path}")
    finally:  # others use this home, too
        for name in ("link", "folder"):
            (code / name).unlink()
    assert answer.status == 404
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    "number", ["..", "%2e%2e", "1%2f..%2f2", "-1", "1e3", "9" * 19, "9" * 400, "١"]
)
def test_a_number_in_a_path_is_a_number(server: Server, number: str) -> None:
    quoted = "".join(c if c.isascii() else "".join(f"%{b:02x}" for b in c.encode()) for c in number)
    for path in (
        f"/experiments/{quoted}",
        f"/experiments/{quoted}/log",
        f"/trials/{quoted}",
        f"/trials/{quoted}/log",
    ):
        assert server.ask(f"/api/v1{path}").status in (400, 404)
    assert server.ask(f"/api/v1/trials/1/log?run={quoted}&rank=0").status in (400, 404)
    assert server.ask(f"/api/v1/trials/1/log?rank=..%2f..%2f{quoted}").status == 400


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e%2fapp.py", "%2fetc%2fpasswd", "a/../../app.py"]
)
def test_the_page_s_files_are_those_of_the_page(server: Server, path: str) -> None:
    answer = server.ask(f"/static/{path}")
    assert answer.status == 404, answer.body
    assert b"import" not in answer.body


def test_a_header_of_ten_megabytes_is_not_read(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nX-Long: ".encode()
        refused = b""
        try:
            connection.sendall(head)
            for _ in range(10):
                connection.sendall(b"x" * (1 << 20))
            refused = connection.recv(100)
        except (BrokenPipeError, ConnectionResetError):
            refused = b"HTTP/1.1 400"
        assert refused.startswith(b"HTTP/1.1 4") or refused == b""
    assert server.ask("/api/v1/about").status == 200


def test_a_body_that_is_too_long_is_refused_told_or_not(server: Server) -> None:
    answer = server.ask("/api/v1/check", "POST", headers={"Content-Length": str(10**10)})
    assert (answer.status, "longer than 1048576 bytes" in answer.json["error"]) == (413, True)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = (
            f"POST /api/v1/check HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie:"
            f" {server.cookie}\r\nX-Det: 1\r\n"
        )
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(3):
                connection.sendall(b"80000\r\n" + b"x" * 0x80000 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            return
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.thorough
def test_a_thousand_idle_connections_keep_nobody_out(made: Path) -> None:
    server = start(made)
    without_body = (
        f"POST /api/v1/check HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie:"
        f" {server.cookie}\r\nX-Det: 1\r\nContent-Length: 100\r\n\r\n"
    )
    idle = []
    try:
        for _ in range(1000):
            idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            if len(idle) % 3 == 1:
                idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: half")
            elif len(idle) % 3 == 2:
                idle[-1].sendall(without_body.encode())
        assert server.ask("/api/v1/about").status == 200
        assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 700
    finally:
        for each in idle:
            each.close()
        stop(server)


def test_other_machines_need_an_allowed_host_name(tmp_path: Path, made: Path) -> None:
    refused = det(tmp_path, tmp_path, "ui", "--host", "0.0.0.0", "--no-browser")
    assert (refused.returncode, "--allow-host NAME" in refused.stderr) == (2, True)
    server = start(made, "--allow-host", "gpu-machine")
    try:
        assert (
            server.ask("/api/v1/about", headers={"Host": f"gpu-machine:{server.port}"}).status
            == 200
        )
        assert server.ask("/api/v1/about", headers={"Host": "other-machine"}).status == 421
    finally:
        stop(server)


def test_it_listens_on_loopback_alone(server: Server) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [of[1] for of in listening if of[3] == "0A" and of[1].endswith(f":{server.port:04X}")]
    assert places == [f"0100007F:{server.port:04X}"]


def test_a_reply_is_sent_without_waiting_for_the_client() -> None:
    """Else the kernel would keep a short body back until the client has confirmed the head."""
    with (
        listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_named(server: Server, tmp_path: Path) -> None:
    refused = det(tmp_path, tmp_path, "ui", "--port", str(server.port), "--no-browser")
    assert refused.returncode == 2
    assert (
        f"cannot listen on 127.0.0.1 port {server.port}: Address already in use; give another"
        " --port" in refused.stderr
    )
