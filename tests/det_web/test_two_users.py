"""Another user of the machine, against a driver, its agent and worker, and `det ui`.

Nothing is read, and nothing is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.det_web.conftest import CONFIG, SCRIPT, environment, wait_for
from tests.support.other_user import (
    answers_of,
    as_other,
    changed_paths,
    command_lines,
    entered_by_all,
    needs_other,
    openers,
    ports_of,
    processes_with,
    read_of_processes,
    taken_ports,
)

from det_web.guard import is_of_another_user

HUSH = "hush-of-the-owner"

pytestmark = [pytest.mark.process, needs_other]


@dataclass
class Owner:
    """What the owner runs."""

    place: Path
    home: Path
    processes: list[int]
    ports: list[int]
    secrets: dict[str, str]
    ui_port: int
    address: str


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    """A search whose trials run, and the page on it, which has started a browser.

    They are below a directory that all can enter.
    """
    with entered_by_all() as place:
        yield from _own(place)


def _own(place: Path) -> Iterator[Owner]:
    home, project, waits = place / "home", place / "project", place / "waits"
    project.mkdir()
    waits.touch()
    (project / "train.py").write_text(SCRIPT)
    variables = f"[API_TOKEN={HUSH}, WAIT_FOR={waits}]"
    (project / "c.yaml").write_text(CONFIG.replace("[API_TOKEN=hush]", variables))
    browser = place / "browser"
    waiting = f"exec {sys.executable} -c 'import time; time.sleep(120)' \"$@\"\n"
    browser.write_text(
        f"#!/bin/sh\necho $$ > {place}/new\nmv {place}/new {place}/browser.pid\n{waiting}"
    )
    browser.chmod(0o755)
    command = [sys.executable, "-m", "det_driver.cli"]
    env = environment(home)
    driver = subprocess.Popen(
        [*command, "run", "c.yaml", "--quiet"], cwd=project, env=env, stdout=subprocess.DEVNULL
    )
    ui = None
    try:
        wait_for(lambda: list(home.glob("experiments/1/**/rank-0.log")), "trials")
        shows = {**env, "DISPLAY": ":99", "BROWSER": f"{browser} %s"}
        opens = [*command, "ui", "--port", "0", "--browser"]
        ui = subprocess.Popen(opens, cwd=place, env=shows, stdout=subprocess.PIPE, text=True)
        assert ui.stdout is not None
        said = ui.stdout.readline()
        token = said.rpartition("token=")[2].strip()
        assert len(token) > 20, said
        wait_for((place / "browser.pid").exists, "browsers")
        processes = [
            driver.pid,
            ui.pid,
            int((place / "browser.pid").read_text()),
            *processes_with(f"DET_HOME={home}"),
        ]
        found = {"token": token, "key": (home / "ui.key").read_text(), "variable": HUSH}
        found |= {
            f"agents {i}": each.read_bytes().hex() for i, each in enumerate(home.glob("**/secret"))
        }
        port = int(said.partition("/login")[0].rpartition(":")[2])
        yield Owner(
            place, home, sorted(set(processes)), ports_of(processes), found, port, said.split()[-1]
        )
    finally:
        waits.unlink()
        if (place / "browser.pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((place / "browser.pid").read_text()), signal.SIGKILL)
        if ui is not None:
            ui.terminate()
            ui.communicate(timeout=30)
        driver.terminate()
        driver.wait(timeout=60)


def test_another_user_finds_no_secret_in_any_command_line(owner: Owner) -> None:
    seen = as_other(command_lines)
    assert any(str(owner.home) in line and "time.sleep" in line for line in seen), (
        "the browser is not seen"
    )
    assert len(owner.secrets) > 3, "there is no agent"
    assert [
        name for name, secret in owner.secrets.items() if any(secret in line for line in seen)
    ] == []
    assert not any("token=" in line and str(owner.place) in line for line in seen)


def test_other_user_reads_no_environment_memory_or_file(owner: Owner) -> None:
    """Nor does that user stop or end one, or change how it runs."""
    assert len(owner.processes) >= 5
    assert as_other(lambda: read_of_processes(owner.processes)) == []


def test_another_user_opens_and_makes_nothing_in_the_home(owner: Owner) -> None:
    """Nor does that user put something else in its place."""
    paths = [str(path) for path in [owner.home, *owner.home.rglob("*")]]
    assert any(path.endswith("experiment.db") for path in paths)
    assert any(path.endswith(f"ui-{owner.ui_port}.html") for path in paths)
    assert as_other(lambda: changed_paths(paths)) == []


def test_another_user_listens_in_no_place_of_ours(owner: Owner) -> None:
    """The printed address has no name that leads elsewhere.

    `localhost` may lead to `::1`, where nobody listens.
    """
    assert as_other(lambda: taken_ports(owner.ports)) == []
    assert owner.address.startswith(f"http://127.0.0.1:{owner.ui_port}/")


def test_nothing_of_ours_lies_open_in_temporary_directories(owner: Owner) -> None:
    began = owner.place.stat().st_ctime - 1
    own = [
        p
        for base in ("/tmp", "/dev/shm", "/var/tmp")
        for p in Path(base).glob("det*")
        if p != owner.place
    ]
    loose = [
        p
        for p in own
        if p.lstat().st_uid == os.getuid()
        and p.lstat().st_mtime > began
        and p.lstat().st_mode & 0o077
    ]
    assert [str(path) for path in loose if not stat.S_ISLNK(path.lstat().st_mode)] == []
    sockets = [
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if "/" in line or "@" in line
    ]
    # What a stranger sends to a driver's wake-ups only makes it look (docs/decisions/0039).
    assert [
        name
        for name in sockets
        if name.lstrip("@").startswith(("det", str(owner.place)))
        and not name.startswith("@det-slots-")
    ] == []


def test_the_ports_of_another_user_answer_a_stranger_nothing(owner: Owner) -> None:
    """Whatever a stranger sends, a port answers with its greeting or a refusal.

    No command of the stranger's runs.
    """
    ran = owner.place / "ran"
    config = json.dumps({"config": f'name: x\nentrypoint: "touch {ran}; true"\n'})
    fork = (
        f"POST /api/v1/experiments/1/fork HTTP/1.1\r\nHost: 127.0.0.1:{owner.ui_port}\r\nX-Det:"
        " 1\r\n"
    )
    fork += f"Content-Length: {len(config)}\r\n\r\n{config}"
    ask = f"GET /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1:{owner.ui_port}\r\n\r\n"
    openings = [ask.encode(), fork.encode(), *openers(ran)]
    assert owner.ui_port in owner.ports
    assert len(owner.ports) >= 3, "the driver and the agent listen, too"
    said = as_other(lambda: answers_of(owner.ports, openings))
    assert len(said) == len(owner.ports) * len(openings)
    for name in (*owner.secrets.values(), "async_halving", "train.py"):
        assert not any(name in each for each in said)
    assert sum(" 401 " in each.partition("\r\n")[0] for each in said) == 2
    time.sleep(0.5)
    assert not ran.exists()


def test_a_cookie_is_of_no_use_to_another_user(owner: Owner) -> None:
    """Who has it of the owner's browser, which gives it to all ports of a host.

    Also who does not wait for the answer.
    """
    ran = owner.place / "ran"
    config = json.dumps({"config": f'name: x\nentrypoint: "touch {ran}; true"\n'})
    with closing(HTTPConnection("127.0.0.1", owner.ui_port, timeout=30)) as browser:
        browser.request("GET", f"/login?token={owner.secrets['token']}")
        cookie = str(browser.getresponse().headers["set-cookie"]).partition(";")[0]
    headers = {"cookie": cookie, "x-det": "1", "x-forwarded-for": "192.0.2.1"}

    def ask(method: str, path: str, body: str | None = None) -> int:
        with closing(HTTPConnection("127.0.0.1", owner.ui_port, timeout=30)) as to:
            to.request(method, path, body, headers)
            return to.getresponse().status

    def ask_and_go() -> None:
        for waits in (0.0, 0.001, 0.01, 0.1):
            to = HTTPConnection("127.0.0.1", owner.ui_port, timeout=30)
            to.request("POST", "/api/v1/experiments/1/fork", config, headers)
            time.sleep(waits)
            assert to.sock is not None
            to.sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", waits > 0.001, 0)
            )
            to.close()

    assert ask("GET", "/api/v1/experiments") == 200
    assert as_other(lambda: ask("GET", "/api/v1/experiments")) == 403
    assert as_other(lambda: ask("POST", "/api/v1/experiments/1/fork", config)) == 403
    as_other(ask_and_go)
    time.sleep(1)
    assert not (owner.home / "experiments" / "2").exists()
    assert not ran.exists()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_owner_of_a_connection_is_known_until_it_is_closed(address: str) -> None:
    """Then nobody's name is on it, and it is taken for a stranger's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {address} here: {error}")
    place = server.getsockname()[:2]

    def come_and_go() -> None:
        socket.create_connection(place).close()

    with server, socket.create_connection(place) as mine, server.accept()[0] as here:
        assert not is_of_another_user(mine.getsockname()[:2], here.getsockname()[:2])
        as_other(come_and_go)
        theirs, whose = server.accept()
        with theirs:
            assert is_of_another_user(whose[:2], theirs.getsockname()[:2])
        come_and_go()
        gone, whose = server.accept()
        with gone:
            assert is_of_another_user(whose[:2], gone.getsockname()[:2])


def test_a_browser_that_is_waited_for_does_not_hold_the_page_up(owner: Owner) -> None:
    """BROWSER names a command that webbrowser does not know, and so waits for."""
    os.kill(int((owner.place / "browser.pid").read_text()), 0)
    with socket.create_connection(("127.0.0.1", owner.ui_port), timeout=30) as to:
        to.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{owner.ui_port}\r\n\r\n".encode())
        assert to.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503")
