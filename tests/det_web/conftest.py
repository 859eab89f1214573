"""A real home, made by a real search, and a real server on it, in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from det_driver.client import Client

SCRIPT = """
import os, time
from det_core import core

PIXEL = "89504e470d0a1a0a0000000d4948445200000002000000010800000000d14920560000" \\
    "000b49444154789c6360f80f000102010042bebc680000000049454e44ae426082"

with core.init() as context:
    lr, done = context.info.trial.hparams["lr"], 0
    print("training with", lr, "<script>alert(1)</script>")
    for operation in context.searcher.operations():
        for done in range(done + 1, operation.length + 1):
            context.train.report_training_metrics(done, {"loss": lr / done, "<b>odd</b>": 1.0})
            context.log_text("said/at each", f"<script>alert(4)</script> at {done}")
        context.train.report_validation_metrics(done, {"error": lr / done})
        context.log_image("seen", bytes.fromhex(PIXEL))
        context.log_table("table", {"<i>name</i>": ["<b>x</b>", None], "value": [lr, float("nan")]}, batches=done)
        with context.checkpoint.store_path({"steps_completed": done}) as (path, uuid):
            (path / "weight.txt").write_text(str(lr))
        operation.report_completed(lr / done)
        while os.path.exists(os.environ.get("WAIT_FOR", "")):
            time.sleep(0.05)
            if context.preempt.should_preempt():
                raise SystemExit(0)
"""
CONFIG = """
name: small
description: "**bold** <script>alert(2)</script>"
entrypoint: python3 train.py
hyperparameters:
  lr: {type: double, minval: 0.01, maxval: 0.1}
  net: {layers: 2}
searcher:
  {name: async_halving, metric: error, max_trials: 4, num_rungs: 2, divisor: 2, max_length: {batches: 4}, max_concurrent_trials: 2}
environment: {environment_variables: [API_TOKEN=hush]}
reproducibility: {experiment_seed: 1}
"""


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """`det ui` in a process, and a browser that is signed in to it."""

    home: Path
    process: subprocess.Popen[str]
    port: int
    token: str
    cookie: str = ""
    log: list[str] = field(default_factory=list)

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str | None] | None = None,
    ) -> Answer:
        """Send a request as the page does; a header that is None is left out."""
        own = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, "X-Det": "1"} | (
            headers or {}
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            data = json.dumps(body).encode() if body is not None else b""
            if data or method != "GET":
                own.setdefault("Content-Length", str(len(data)))
            for name, value in own.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return Answer(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return what /api/v1 answers to a GET that goes well."""
        answer = self.ask(f"/api/v1{path}")
        assert answer.status == 200, answer.body
        return answer.json

    def sign_in(self) -> None:
        answer = self.ask(f"/login?token={self.token}")
        assert answer.status == 303, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DET_HOME": str(home),
        "DET_LEASE": "0",
        "DET_SLOTS_TOTAL": "2",
        "DISPLAY": "",
    }


def det(home: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "det_driver.cli", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def start(home: Path, *arguments: str, stderr: int | None = None) -> Server:
    """Start a server on a home, and sign in."""
    command = [
        sys.executable,
        "-m",
        "det_driver.cli",
        "ui",
        "--port",
        "0",
        "--no-browser",
        *arguments,
    ]
    process = subprocess.Popen(
        command, env=environment(home), stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r":(\d+)/login\?token=(\S+)", said)
    assert found, said
    server = Server(home, process, int(found[1]), found[2])
    server.sign_in()
    return server


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.communicate(timeout=30)
    finally:
        server.process.kill()


def wait_for(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, f"there are no {what}"
        time.sleep(0.05)


def install_fakes(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the kit's fake framework as a stranger's plugin in all processes from now on."""
    info = place / "site/fakes-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[det]\nfakes = det_testing.fake_hooks\n")
    patch.setenv("PYTHONPATH", str(info.parent))


@pytest.fixture(scope="session")
def made(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one finished search of four trials; its project is beside it."""
    place = tmp_path_factory.mktemp("web")
    project = place / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "evil.html").write_text("<script>alert(3)</script>")
    (project / "const.yaml").write_text(CONFIG)
    done = det(place / "home", project, "run", "const.yaml", "-q")
    assert done.returncode == 0, done.stderr
    Client(place / "home").create_model("seen")
    trace = place / "home/experiments/1/tensorboard/trial-1/run/a.pt.trace.json"
    trace.parent.mkdir(parents=True, exist_ok=True)
    trace.write_text('{"traceEvents":[]}')
    return place / "home"


@pytest.fixture(scope="session")
def server(made: Path) -> Iterator[Server]:
    """A server on the home with one search; tests change nothing of it."""
    server = start(made)
    yield server
    stop(server)
