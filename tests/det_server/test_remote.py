"""The command line on a server: the same as on a home, and what only a server has."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_server.conftest import OF_ANN, OF_BOB, PASSWORD, fill

from det_driver.cli import main
from det_driver.native.script import submit
from det_driver.store import Store
from det_server import Users

TRAIN = """\
import time
from pathlib import Path
from det_core import core

with core.init() as context:
    for n in range(1, 4):
        print("step", n, flush=True)
        context.train.report_validation_metrics(n, {"loss": 1.0 / n})
    while not Path("/tmp", GATE).exists():
        time.sleep(0.1)
    print("the end", flush=True)
"""
CONFIG = """\
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 3}}
resources: {slots_per_trial: 0}
"""


class Running:
    """A server of a home, in a process of its own, always on the same port."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home, self._options = home, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        environ = {**os.environ, "DET_HOME": str(self.home), "DET_MASTER": ""}
        argv = [sys.executable, "-P", "-m", "det_driver.cli", "server", "start"]
        self.process = subprocess.Popen(
            [*argv, "--port", str(self.port), *self._options],
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert self.process.stdout is not None
        while "is at" not in (line := self.process.stdout.readline()):
            assert line, "the server has ended"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(processes: object, tmp_path: Path) -> Iterator[Running]:
    fill(tmp_path / "home")
    running = Running(tmp_path / "home")
    yield running
    running.kill()


@pytest.fixture
def signed_in(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DET_HOME", "DET_MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    said = typed("login", server.address, "--user", "ann", "--password-stdin")
    assert (said[0].startswith(f"signed in to {server.address} as ann (editor)"), said[2]) == (
        True,
        0,
    )
    return server


def typed(*words: str) -> tuple[str, str, object]:
    """Return what a command prints, what it says on stderr, and its status."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main(list(words))
    return out.getvalue(), err.getvalue(), end.value.code


COMMANDS = (
    ("show", "99"),
    ("show", "1", "--nosuch"),
    ("metrics", "1", "--csv"),
    ("label", "1", "good", "ümlaut"),
    ("note", "1", "a note of 'two' \x1b[31m words"),
    ("set", "1", "priority", "7"),
    ("queue",),
    ("model", "create", "mnist", "--label", "good"),
    ("m", "describe", "mnist"),
    ("rm", "--yes", "1"),
    ("ls",),
)


def test_commands_do_the_same_on_a_home_and_a_server(
    signed_in: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_server = [typed(*words) for words in COMMANDS]
    assert len(on_server[-1][0].splitlines()) == 3
    fill(tmp_path / "other")
    monkeypatch.setenv("DET_HOME", str(tmp_path / "other"))
    for words, (out, err, status) in zip(COMMANDS, on_server, strict=True):
        mine = [timeless(each, tmp_path / "other") for each in typed(*words)]
        theirs = [timeless(each, signed_in.home) for each in (out, err, status)]
        assert theirs == mine, words


def timeless(said: object, home: Path) -> str:
    """Return what was said without times, the width of their column, and the home."""
    said = re.sub(r"\d+ (s|min) ago", "now", str(said).replace(str(home), "HOME"))
    return re.sub(r"(created|now) +", r"\1 ", said)


def test_what_a_server_does_not_do_is_said_and_not_done(signed_in: Running, tmp_path: Path) -> None:
    address = signed_in.address
    assert typed("export", str(OF_ANN), "x")[1:] == (
        "det: det export acts on a home only, and not on a server; with the home of this machine:"
        " det -m '' export\n",
        2,
    )
    assert typed("show", "1", "--plot", str(tmp_path / "x.png"))[1:] == (
        "det: det show with --plot acts on a home only, and not on a server; leave it out\n",
        2,
    )
    assert "is of bob, and not ann's" in typed("pause", str(OF_BOB))[1]
    assert "bob" in typed("rm", "--yes", str(OF_BOB))[1]
    with Store.reader(signed_in.home) as store:
        assert len(store.experiments.list()) == 3
    assert typed("alerts", "retry") == (
        "",
        "det: only an admin may do this, and ann is an editor\n",
        2,
    )
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "train.py").write_text("better = True\n")
    typed("resume", str(OF_ANN), "--code", str(tmp_path / "new"), "--yes", "--detach")
    with Store.reader(signed_in.home) as store:
        assert (store.code_dir(OF_ANN) / "train.py").read_text() == "better = True\n"
    assert typed("checkpoint", "export", "nosuch", str(tmp_path / "x"))[2] == 2
    assert typed("ui") == (f"the page is at {address}/\n", "", 0)
    assert typed("ui", "--port", "1")[1].startswith("det: det ui with --port is about the page of")
    assert typed("logout") == (f"signed out of {address}\n", "", 0)
    assert typed("-m", address, "list")[1:] == (
        f"det: you are not signed in to {address}; sign in: det login {address}\n",
        2,
    )


def test_sign_ins_that_fail_say_why(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def login(address: str, password: str = "wrong") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
        out, err, status = typed("login", address, "--user", "ann", "--password-stdin")
        assert (out, status) == ("", 2)
        return err

    assert login(server.address) == (
        f"det: {server.address} knows no ann with this password; try again\n"
    )
    assert login("http://127.0.0.1:1") == (
        "det: cannot reach http://127.0.0.1:1: connection refused; check that det server runs\n"
    )
    away = "http://nosuch.invalid"
    assert "is plain http to another machine" in login(away)
    monkeypatch.setattr("sys.stdin", io.StringIO("wrong\n"))
    assert typed("login", away, "--insecure-http", "--password-stdin")[1] == (
        "det: there is no host nosuch.invalid; check the address\n"
    )
    assert login(f"{server.address}/nosuch").startswith("det: ")
    assert not (tmp_path / "config").exists()


def test_a_token_does_not_follow_a_redirect(
    processes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_response(307)
            self.send_header("location", f"http://127.0.0.1:{port}/stolen")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *ignored: object) -> None:
            pass

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        port = http.server_address[1]
        serving = threading.Thread(target=http.serve_forever)
        serving.start()
        monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
        address = f"http://127.0.0.1:{port}"
        _, err, status = typed("login", address, "--user", "ann", "--password-stdin")
        http.shutdown()
        serving.join()
    assert (seen, status) == (["/api/v1/session"], 2)
    assert err.startswith(f"det: {address} sends us to {address}/stolen, where the token does not")


@pytest.mark.timeout(240)
def test_an_experiment_survives_the_server_and_logs_go_on(
    signed_in: Running, tmp_path: Path
) -> None:
    code, gate = tmp_path / "code", tmp_path / "gate"
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("GATE", repr(str(gate))))
    (code / "const.yaml").write_text(CONFIG)
    config = str(code / "const.yaml")
    assert typed("run", config, "-c", "resources.nosuch=1")[2] == 2
    (code / ".env").write_text("PASSWORD=x")
    out, err, status = typed("run", config, "--detach")
    assert (out, status) == (
        f"experiment 4 runs on {signed_in.address}; follow it: det logs -f 4\n",
        0,
    ), err
    assert "of code sent to" in err
    assert ".env (passwords or tokens); to leave them out, list them in .detignore" in err
    followed = subprocess.Popen(
        [sys.executable, "-P", "-m", "det_driver.cli", "logs", "-f", "--no-times", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert followed.stdout is not None
    lines = [followed.stdout.readline() for _ in range(3)]
    signed_in.kill()
    gate.touch()
    with Store.reader(signed_in.home) as store:
        while store.experiments.get(4).state == "ACTIVE":
            time.sleep(0.1)
    signed_in.start()
    rest, err = followed.communicate()
    shown = ["step 1", "step 2", "step 3", "the end"]
    assert [*lines, *rest.splitlines(True)] == [f"[trial 4 run 1 rank-0] {x}\n" for x in shown]
    assert "going on where it was" in err
    # The code is there already.
    out, err, status = typed("run", config)
    assert "of code sent to" not in err
    assert out.splitlines()[0] == f"experiment 5 is submitted to {signed_in.address}"
    assert out.splitlines()[-1].startswith("experiment 5 is completed: best loss 0.333333 (trial")
    assert status == 0
    assert typed("logs", "5", "--driver")[0] in out
    assert "experiment 5" in typed("show", "5")[0]
    # A script that is its own experiment.
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 3}}
    config = {"searcher": searcher, "resources": {"slots_per_trial": 0}}
    with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as end:
        submit(
            config,
            code,
            ["train.py"],
            home=tmp_path / "none",
            entrypoint=None,
            master=signed_in.address,
        )
    assert f"experiment 6 (train) is submitted to {signed_in.address}; its" in said.getvalue()
    assert (end.value.code, (tmp_path / "none").exists()) == (0, False)


def test_words_of_determined_act_on_a_server(signed_in: Running) -> None:
    pytest.importorskip("determined", reason="its commands come with det-compat")
    assert typed("e", "set", "name", str(OF_ANN), "mine")[0] == "experiment 1 is called mine\n"
    assert typed("e", "archive", str(OF_ANN))[0] == "experiment 1 is archived\n"
    assert "is of bob, and not ann's" in typed("e", "archive", str(OF_BOB))[1]
    assert f"experiment {OF_ANN}" in typed("e", "describe", str(OF_ANN))[0]


def test_a_command_runs_on_the_server_with_sent_code(signed_in: Running, tmp_path: Path) -> None:
    """Its output, its status, its place among commands, and its end by Ctrl-C."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "say.py").write_text("print('said there')\nraise SystemExit(3)\n")
    Users(signed_in.home).set_preferences("ann", {"resources.priority": "60"})
    words = ("--slots", "0", "--code", str(tmp_path / "code"), "--", "python3", "say.py")
    out, err, status = typed("cmd", "run", *words)
    assert (out, status) == ("said there\n", 3), err
    assert "of code sent to" in err
    assert typed("cmd", "run", "--slots", "0", "ls")[::2] == ("", 0)
    number = typed("cmd", "list", "--all", "--json")[0].split('"id": ')[2].partition(",")[0]
    with Store.reader(signed_in.home) as store:
        assert store.experiments.config(int(number.strip())).resources.priority == 60
    assert typed("cmd", "logs", number)[::2] == ("said there\n", 0)
    assert typed("cmd", "status", number)[2] == 3
    assert "experiment 1 is no command" in typed("cmd", "logs", "1")[1]
    out, err, status = typed("cmd", "run", "--slots", "0", "-d", "sleep", "600")
    assert status == 0, err
    number = out.split()[1]
    assert "has not ended" in typed("cmd", "status", number)[1]
    assert typed("cmd", "kill", number)[0] == f"command {number} is asked to end\n"
    assert typed("cmd", "logs", "-f", number)[2] == 0
    assert f"command {number} is canceled" in typed("cmd", "status", number)[1]


def test_ctrl_c_ends_a_command_on_the_server(signed_in: Running) -> None:
    argv = [sys.executable, "-P", "-m", "det_driver.cli", "cmd", "run", "--slots", "0"]
    code = "echo begun; trap 'echo ends; exit 5' TERM; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [*argv, "sh", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out.splitlines()[-1], process.returncode) == ("ends", 1), err
    assert err.endswith("is canceled\n")
