"""`det server` from the command line: a server in a process, and what it refuses to start."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from det_core.errors import DetError
from det_node.wire._tls import _make_certificate
from det_server import Role, Users
from det_server.command import server
from det_web.serve import MOST_HANDSHAKES

PASSWORD = "a long password"


def call(home: Path, *arguments: str, given: str | None = None) -> Result:
    """Run a command, whose first argument is "server"."""
    return CliRunner().invoke(server, [*arguments[1:], f"--home={home}"], input=given)


def said(home: Path, *arguments: str, given: str | None = None) -> str:
    """Return what a command prints that goes well."""
    done = call(home, *arguments, given=given)
    assert done.exception is None, done.exception
    return done.output


def refused(home: Path, *arguments: str, given: str | None = None) -> str:
    done = call(home, *arguments, given=given)
    assert isinstance(done.exception, DetError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    Users(tmp_path).add("root", Role.ADMIN, PASSWORD)
    add = ("server", "user", "add", "ann", "--role", "editor")
    assert said(tmp_path, *add, given=f"{PASSWORD}\n") == "ann is an editor\n"
    assert "exists already" in refused(tmp_path, *add, given=f"{PASSWORD}\n")
    assert said(tmp_path, "server", "user", "list") == "ann\teditor\nroot\tadmin\n"
    said(tmp_path, "server", "user", "password", "ann", given="another password\n")
    assert Users(tmp_path).sign_in("ann", "another password")
    said(tmp_path, "server", "user", "remove", "ann")
    assert said(tmp_path, "server", "user", "list") == "root\tadmin\n"
    assert "is the only admin" in refused(tmp_path, "server", "user", "remove", "root")


def test_users_have_defaults_for_what_configurations_leave_out(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users.add("root", Role.ADMIN, PASSWORD)
    users.add("ann", Role.EDITOR, PASSWORD)
    defaults = ("server", "user", "defaults", "ann")
    assert said(tmp_path, *defaults) == ""
    assert said(tmp_path, *defaults, "resources.priority=60", "resources.max_slots=2") == (
        "resources.max_slots=2\nresources.priority=60\n"
    )
    assert said(tmp_path, *defaults, "resources.max_slots=") == "resources.priority=60\n"
    for wrong, why in (
        ("resources.priority=100", "the default resources.priority of ann: "),
        ("resources.priority", "'resources.priority' is no KEY=VALUE; give one such as"),
        ("resources.weight=", "ann has no default resources.weight; give one such as"),
        ("nosuch.account=x", "nosuch.account: give resources, "),
    ):
        assert refused(tmp_path, *defaults, wrong).startswith(why)
    assert said(tmp_path, *defaults) == "resources.priority=60\n"
    assert "no user is called 'bob'" in refused(
        tmp_path, *defaults[:-1], "bob", "resources.weight=2"
    )
    users.remove("ann")
    users.add("ann", Role.EDITOR, PASSWORD)
    assert said(tmp_path, *defaults) == ""


def test_workspaces_are_made_with_members(tmp_path: Path) -> None:
    Users(tmp_path).add("ann", Role.EDITOR, PASSWORD)
    listed = ("server", "workspace", "list")
    assert "give --private" in refused(tmp_path, "server", "workspace", "set", "plans")
    made = said(tmp_path, "server", "workspace", "set", "plans", "--open")
    assert made == "the workspace plans is open\n"
    said(tmp_path, "server", "workspace", "set", "plans", "--private")
    grant = ("server", "workspace", "grant", "plans", "ann", "--role", "viewer")
    assert said(tmp_path, *grant) == "ann is a viewer of plans\n"
    assert said(tmp_path, *listed) == "plans\tprivate\tann (viewer)\n"
    said(tmp_path, "server", "workspace", "withdraw", "plans", "ann")
    assert said(tmp_path, *listed) == "plans\tprivate\t\n"
    said(tmp_path, "server", "workspace", "remove", "plans")
    assert said(tmp_path, *listed) == ""


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    users = Users(tmp_path)
    users.add("ann", Role.EDITOR, PASSWORD)
    text = said(tmp_path, "server", "user", "token", "ann", "--days", "7").splitlines()[0]
    found = users.find(text)
    assert found is not None
    assert found.name == "ann"
    assert re.fullmatch(r"1\tann\ttoken\tuntil \S+\n", said(tmp_path, "server", "token", "list"))
    assert said(tmp_path, "server", "token", "revoke", "1") == "token 1 is revoked\n"
    assert users.find(text) is None
    assert "no token has the number 1" in refused(tmp_path, "server", "token", "revoke", "1")


def test_without_a_server_there_are_no_users(tmp_path: Path) -> None:
    assert "start its server: det server start" in refused(tmp_path, "server", "user", "list")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--host", "0.0.0.0"), "passwords would travel in clear text; give --certificate"),
        (("--host", "0.0.0.0", "--behind-proxy"), "--allow-host NAME"),
        (("--key", "k.pem"), "--certificate and --key belong together"),
        (("--certificate", "c.pem", "--key", "k.pem"), "cannot use the certificate c.pem"),
    ],
)
def test_what_is_not_safe_to_start_is_refused(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    assert says in refused(tmp_path / "home", "server", "start", *options)
    assert not (tmp_path / "home").exists()


def start(home: Path, *options: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a server, and return it with the lines that it printed until it served."""
    command = [sys.executable, "-m", "det_driver.cli", "server", "start", "--port", "0", *options]
    process = subprocess.Popen(
        command,
        env={**os.environ, "DET_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("det server:"):
            break
    return process, lines


@pytest.fixture
def stopped() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.terminate()
        each.communicate(timeout=30)


@pytest.mark.process
def test_a_team_signs_in_over_tls(tmp_path: Path, stopped: list[subprocess.Popen[str]]) -> None:
    home = tmp_path / "home"
    pem = tmp_path / "both.pem"
    pem.write_bytes(_make_certificate()[1])
    tls = (f"--certificate={pem}", f"--key={pem}")
    process, lines = start(home, *tls)
    stopped.append(process)
    password = re.search(r"admin can sign in once with the password (\S+)", lines[0])
    assert password, lines
    assert sum("is trusted with" in line for line in lines) == 1
    address = re.search(r"https://127.0.0.1:(\d+)/", lines[-1])
    assert address, lines
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", int(address[1]), context=context)
    given = {"name": "admin", "password": password[1]}
    connection.request("POST", "/api/v1/session", json.dumps(given), {"X-Det": "1"})
    reply = connection.getresponse()
    session = json.loads(reply.read())
    assert (reply.status, session["role"]) == (201, "admin")
    connection.request("GET", "/api/v1/me", None, {"Authorization": f"Bearer {session['token']}"})
    assert json.loads(connection.getresponse().read())["name"] == "admin"
    connection.close()
    # Clients that never say a word of TLS take no descriptors for ever.
    silent = [socket.create_connection(("127.0.0.1", int(address[1]))) for _ in range(400)]
    connection.request("GET", "/api/v1/me", None, {"Authorization": f"Bearer {session['token']}"})
    assert connection.getresponse().status == 200
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < MOST_HANDSHAKES + 80
    for each in (connection, *silent):
        each.close()
    # A second server of the home is refused by name of the first.
    second, told = start(home)
    assert second.wait(30) == 2
    assert f"process {process.pid} serves {home} already" in "".join(told)
    # The first start only makes the admin.
    process.terminate()
    process.communicate(timeout=30)
    again, lines = start(home)
    stopped.append(again)
    assert len(lines) == 1
