"""The pages of a server for admins, in a browser: signing in, users and alerts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.det_server.conftest import OF_ANN, PASSWORD, fill
from tests.det_server.test_remote import Running
from tests.det_web.browsing import PROBLEMS, Page
from tests.det_web.conftest import Server
from tests.repo.browser import CHROMIUM, Browser

from det_driver.store import Store
from det_server import Role, Users

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    fill(tmp_path / "home")
    running = Running(tmp_path / "home")
    yield running
    running.kill()


@contextmanager
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """Receive alerts at an address."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/hook", got
        listening.shutdown()
        thread.join()


def test_admin_adds_a_user_and_sends_an_alert_again(server: Running, tmp_path: Path) -> None:
    """And changes a role, which arrow keys in a choice do not change before it is saved."""
    users = Users(server.home)
    with receiver() as (url, got), Browser(tmp_path / "profile") as browser:
        (server.home / "alerts.yaml").touch(0o600)
        hooks = [{"name": "team", "url": url}]
        (server.home / "alerts.yaml").write_text(json.dumps({"webhooks": hooks}))
        with Store(server.home) as store, store.lock(OF_ANN):
            store.alerts.add("x", "team", "failed", {"title": "it failed"})
            store.alerts.failed(1, "no answer", due=5.0, dead=True)
        browser.before_scripts(PROBLEMS)
        page = Page(browser, Server(server.home, server.process, server.port, ""))
        page.open("/users", "form input[name=password]")
        page.tell("document.querySelector('[name=name]').value = 'root'")
        page.tell(f"document.querySelector('[name=password]').value = '{PASSWORD}'")
        page.click("Sign in")
        page.until("location.pathname === '/users' && !!document.querySelector('td')")

        page.click("Add a user")
        page.type("name", "new")
        page.type("password, of 10 characters or more", "short")
        page.click("Add")
        page.until("document.querySelector('dialog .error')?.innerText.includes('10 to 1024')")
        page.type("password, of 10 characters or more", PASSWORD)
        page.click("Add")
        page.until("!document.querySelector('dialog')")
        page.until("document.querySelector('main').innerText.includes('5 users')")
        assert users.sign_in("new", PASSWORD) is not None

        role = "document.querySelector('dialog select')"
        page.tell("document.querySelector('[aria-label=\"change the role of new\"]').click()")
        page.until(f"{role}?.value === 'editor'")
        change = "dispatchEvent(new Event('change', {bubbles: true}))"
        page.tell(f"({role}.value = 'viewer', {role}.{change})")
        assert {each.name: each.role for each in users.everybody()}["new"] is Role.EDITOR
        page.click("Save")
        page.until("!document.querySelector('dialog')")
        assert {each.name: each.role for each in users.everybody()}["new"] is Role.VIEWER

        page.tell("document.querySelector('[aria-label=\"change the quota of new\"]').click()")
        page.type("quota", "many")
        page.until("document.querySelector('dialog [type=submit], dialog button').disabled")
        page.type("quota", "1.5GiB")
        page.click("Save")
        page.until("!document.querySelector('dialog')")
        page.until("document.querySelector('main').innerText.includes('1.5 GiB')")
        assert {each.user: each.most for each in users.quotas()}["new"] == 3 * 2**29

        page.open("/alerts", "[aria-label^='send the alerts']")
        page.click("Send again")
        page.until("document.querySelector('main').innerText.includes('All alerts are sent.')")
        assert b"it failed" in got[0]
        assert page.tell("window.problems") == []
