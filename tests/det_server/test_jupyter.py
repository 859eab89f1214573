"""`det notebook` with the real JupyterLab: alone, through a server, and in Chromium."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.det_server.conftest import PASSWORD
from tests.det_server.test_remote import Running, typed
from tests.det_server.test_remote import server as server  # noqa: PLC0414
from tests.det_server.test_remote import signed_in as signed_in  # noqa: PLC0414
from tests.det_web.browsing import PROBLEMS, Page
from tests.repo.browser import CHROMIUM, Browser
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from det_server import Users

pytest.importorskip("jupyterlab", reason="nox -s notebooks has it")
pytestmark = [pytest.mark.process, pytest.mark.slow]
ONE = {"DET_SLOTS_TOTAL": "1"}
LIMIT_SECONDS = 120


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files of Jupyter and IPython apart from those of whoever runs the tests."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


class Kernel:
    """A kernel of a notebook, over its WebSocket."""

    def __init__(self, base: str, **headers: str) -> None:
        self._http = httpx2.Client(base_url=base, headers=headers, timeout=LIMIT_SECONDS)
        made = self._http.post("api/kernels", json={})
        made.raise_for_status()
        self._channels = f"{base.replace('http', 'ws', 1)}api/kernels/{made.json()['id']}/channels"
        self._leaving = contextlib.ExitStack()
        self._headers = headers
        self.connect()

    def connect(self, **headers: str) -> None:
        """Open the WebSocket, with other headers if some are given."""
        opening = connect(
            self._channels,
            additional_headers=headers or self._headers,
            open_timeout=LIMIT_SECONDS,
        )
        self.socket = self._leaving.enter_context(opening)

    def send(self, code: str) -> None:
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        header = {
            "msg_id": uuid.uuid4().hex,
            "username": "",
            "session": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "version": "5.3",
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }
        self.socket.send(json.dumps(message))

    def run(self, code: str) -> str:
        """Execute a cell, and return what it prints."""
        self.send(code)
        printed = ""
        while (message := self._next())["msg_type"] != "execute_reply":
            printed += message["content"].get("text", "")
        while not printed:
            printed += self._next()["content"].get("text", "")
        return printed

    def _next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.socket.recv(LIMIT_SECONDS))
        return found

    def close(self) -> None:
        self._leaving.close()
        self._http.close()


def test_a_notebook_of_this_machine_has_its_slots_and_a_token(det, wait_until):
    folder = det.cwd / "work"
    folder.mkdir()
    process = det.start("notebook", "--no-browser", "work", env=ONE)
    assert process.stdout is not None
    line = process.stdout.readline()
    address, _, token = line.split(" is at ")[1].strip().partition("lab?token=")
    assert line.startswith("notebook 1 is at http://127.0.0.1:")
    assert det("notebook", "open", "--no-browser", "1").stdout == line
    assert httpx2.get(f"{address}api/kernels").status_code == 403
    kernel = Kernel(address, authorization=f"token {token}")
    assert kernel.run("import os; print(os.getcwd(), os.environ['DET_SLOT_IDS'])") == (
        f"{folder} [0]\n"
    )
    kernel.close()
    # Others may read command lines and, in a shared home, logs.
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert token not in lines.stdout
    private = {each for each in det.home.rglob("*") if each.is_file() and token in read(each)}
    assert private
    assert all(each.parent.stat().st_mode & 0o077 == 0 for each in private), private
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_SECONDS)[0] == "det: notebook 1 is canceled\n"
    assert det.json("notebook", "list", "--all")[0]["state"] == "CANCELED"
    # The fixture fails where a process is left, such as the kernel.


def read(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def test_only_an_idle_notebook_ends(det, wait_until):
    """A cell that runs and prints nothing is longer than the limit."""
    process = det.start("notebook", "--no-browser", "--slots", "0", "--idle", "0.1")
    assert process.stdout is not None
    address, _, token = process.stdout.readline().split(" is at ")[1].strip().partition("lab?")
    kernel = Kernel(address, authorization=f"token {token.removeprefix('token=')}")
    # 6 seconds are the limit.
    assert kernel.run("import time; time.sleep(15); print('the end')") == "the end\n"
    # The page is still open, and does nothing.
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 124
    said = det("logs", "1").stdout
    assert "det: the notebook is ended: it was idle for 6 seconds, which is its limit" in said
    kernel.close()


def test_a_notebook_waits_in_the_queue_and_is_given_up(det, wait_until):
    det("cmd", "run", "-d", "sleep", "600", env=ONE)
    process = det.start("notebook", "--no-browser", env=ONE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("det: notebook 2 waits for slots")
    assert "has no address: it is ACTIVE, and waits for slots" in (
        det("notebook", "open", "2", status=2).stderr
    )
    process.send_signal(signal.SIGINT)
    assert "notebook 2 is canceled" in process.communicate(timeout=LIMIT_SECONDS)[0]
    det("cmd", "kill", "--now", "1")


def test_settings_of_the_user_open_no_other_way(det, tmp_path):
    """The user's own settings would let in everybody on this machine."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "jupyter_server_config.py").write_text(
        "c.ServerApp.ip = '0.0.0.0'\nc.IdentityProvider.token = ''\nc.ServerApp.token = ''\n"
        "c.ServerApp.allow_origin = '*'\nc.ServerApp.password = ''\n"
    )
    env = {"JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    process = det.start("notebook", "--no-browser", "--slots", "0", env=env)
    assert process.stdout is not None
    address, _, token = process.stdout.readline().split(" is at ")[1].strip().partition("lab?")
    assert address.startswith("http://127.0.0.1:")
    assert len(token) > 40
    assert httpx2.get(f"{address}api/kernels").status_code == 403
    det("notebook", "kill", "1")
    process.communicate(timeout=LIMIT_SECONDS)


@pytest.fixture
def started(signed_in: Running, tmp_path: Path) -> Iterator[tuple[Running, str, int]]:
    """A notebook of ann on a server, with the code of a directory."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("NAME = 'of ann'\n")
    words = ("--slots", "0", "--code", str(tmp_path / "code"))
    out, err, status = typed("notebook", "start", "--no-browser", *words)
    assert status == 0, err
    line = out.splitlines()[-1]
    address = line.split(" is at ")[1]
    number = int(address.rstrip("/").rpartition("/")[2])
    assert line == f"notebook {number} is at {signed_in.address}/notebooks/{number}/"
    yield signed_in, address, number
    typed("notebook", "kill", "--now", str(number))


def token_of(server: Running, name: str) -> str:
    return Users(server.home).make_token(name).text


def test_a_notebook_on_a_server_is_its_owners(started: tuple[Running, str, int]) -> None:
    running, address, number = started
    ann = {"authorization": f"Bearer {token_of(running, 'ann')}"}
    reply = httpx2.get(address, headers=ann, follow_redirects=True)
    assert (reply.status_code, reply.url.path) == (200, f"/notebooks/{number}/lab")
    assert "<title>JupyterLab</title>" in reply.text
    kernel = Kernel(address, **ann)
    assert kernel.run("import mine; print(mine.NAME)") == "of ann\n"
    for name, expected in {"bob": 403, "root": 403, "": 401}.items():
        given = {"authorization": f"Bearer {token_of(running, name)}"} if name else {}
        assert httpx2.get(f"{address}lab", headers=given).status_code == expected
        with pytest.raises(InvalidStatus) as refusal:
            kernel.connect(**given, origin=running.address)
        assert refusal.value.response.status_code == expected
    foreign = {**ann, "origin": "https://evil.example"}
    assert httpx2.post(f"{address}api/kernels", headers=foreign).status_code == 403
    with pytest.raises(InvalidStatus):
        kernel.connect(**foreign)
    kernel.close()


def test_a_notebook_goes_on_while_its_server_is_restarted(
    started: tuple[Running, str, int], wait_until: Any
) -> None:
    running, address, number = started
    ann = {"authorization": f"Bearer {token_of(running, 'ann')}"}
    kernel = Kernel(address, **ann)
    assert kernel.run("x = 5; print(x)") == "5\n"
    running.kill()
    with pytest.raises(ConnectionClosed):
        kernel.run("print(x)")
    running.start()
    assert typed("notebook", "open", "--no-browser", str(number))[::2] == (
        f"notebook {number} is at {address}\n",
        0,
    )
    kernel.connect()
    assert kernel.run("print(x + 1)") == "6\n"
    kernel.close()
    assert f"notebook {number} is asked to end" in typed("notebook", "kill", str(number))[0]
    wait_until(
        lambda: httpx2.get(f"{address}lab", headers=ann).status_code in (502, 503), "its end"
    )
    listed = typed("notebook", "list", "--all", "--json")[0]
    wait_until(lambda: '"CANCELED"' in typed("notebook", "list", "--all", "--json")[0], listed)
    assert "is canceled" in typed("notebook", "open", str(number))[1]


def test_an_admin_lists_and_kills_a_notebook(
    started: tuple[Running, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _, number = started
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    typed("login", running.address, "--user", "root", "--password-stdin")
    assert f" {number}  notebook in code" in typed("notebook", "list")[0]
    assert typed("notebook", "kill", str(number))[2] == 0


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)


@needs_chromium
def test_a_page_runs_cells_and_reaches_nothing_else_of_det(
    started: tuple[Running, str, int], tmp_path: Path
) -> None:
    running, address, _ = started
    with Browser(tmp_path / "profile") as browser:
        browser.before_scripts(PROBLEMS)
        cookie = f"det_server_{running.port}"
        browser.set_cookie(cookie, token_of(running, "ann"), running.address)
        browser.open(f"{address}lab?reset", 1300)
        page = Page(browser, running)  # type: ignore[arg-type]
        card = "document.querySelector('.jp-LauncherCard[data-category=Notebook]')"
        page.until(f"!!{card}")
        page.tell(f"{card}.click()")
        cell = "document.querySelector('.jp-Notebook .jp-Cell .cm-content')"
        page.until(f"!!{cell}")
        # It may ask which kernel to start.
        page.until(
            "document.querySelector('.jp-Dialog .jp-mod-accept')?.click(),"
            f" fetch('{address}api/kernels').then(reply => reply.json()).then(found =>"
            " found.some(each => each.execution_state === 'idle'))"
        )
        page.tell(f"{cell}.focus()")
        page.until(
            f"{cell}.textContent.includes('print') ||"
            " document.execCommand('insertText', false, 'print(6 * 7)')"
        )
        run = "document.querySelector('[data-command=\"notebook:run-cell-and-select-next\"]')"
        page.tell(
            f"{run}.dispatchEvent(new MouseEvent('mousedown', {{bubbles: true}})), {run}.click()"
        )
        page.until("document.querySelector('.jp-OutputArea-output')?.textContent.trim() === '42'")
        assert page.tell("window.problems") == []
        assert page.tell(attempt(f"fetch('{address}api/status')")) == "reached"
        for code in (
            "fetch('/api/v1/me', {headers: {'X-Det': '1'}})",
            f"fetch('{running.address}/notebooks/')",
            "navigator.serviceWorker.register('x.js')",
        ):
            assert page.tell(attempt(code)) != "reached", code
        # A window of det is none that its scripts can use, and det is in no frame.
        browser.do_as_user("window.other = window.open('/login')")
        page.until("window.other.closed")
        page.tell(
            "{ let f = document.createElement('iframe'); f.src = '/login'; f.id = 'framed';"
            " f.onload = () => f.dataset.there = '1'; document.body.append(f) }"
        )
        page.until("document.getElementById('framed').dataset.there === '1'")
        assert page.tell("document.getElementById('framed').contentDocument === null")


def attempt(code: str) -> str:
    """Return code that says "reached", or why a promise fails."""
    return f"({code}).then(() => 'reached').catch(error => String(error))"
