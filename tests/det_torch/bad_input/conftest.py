"""A `det` whose store is found sound after every row, and one that need not wait for torch."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SOUND = """
import torch
from torch import nn

from det_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial, Reducer


class Lines(torch.utils.data.Dataset):
    def __init__(self, length=8):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index / 8.0]), torch.tensor([index / 4.0])


class Sound(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return DataLoader(Lines(), batch_size=2)

    def build_validation_data_loader(self):
        return DataLoader(Lines(), batch_size=2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = ((self.model(x) - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"error": ((self.model(x) - y) ** 2).mean()}
"""

CONFIG = """
name: bad input
entrypoint: model_def:Trial
searcher: {name: single, metric: error, max_length: {batches: 4}}
min_validation_period: {batches: 2}
scheduling_unit: 2
max_restarts: 0
reproducibility: {experiment_seed: 1}
"""

HEAD = "from sound import *\n\n\n"


class Project:
    """A directory with a configuration and a model, and `det` on it."""

    def __init__(self, det: Any, warm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self.det, self.warm = det, warm
        self.home: Path = det.home
        self.cwd: Path = det.cwd
        self.sound = True  # a row that damages the store itself says so
        self.write("sound.py", SOUND)
        self.write("const.yaml", CONFIG)

    def write(self, name: str, text: str) -> Path:
        path = self.cwd / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def model(self, text: str) -> str:
        """Write the model: what `sound.py` defines, then `text`; return it."""
        whole = HEAD + textwrap.dedent(text).strip("\n") + "\n"
        self.cwd.joinpath("model_def.py").write_text(whole)
        return whole

    def quick(
        self, *arguments: str | Path, status: int | None = None, mighty: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run `det` in a process that has torch already.

        It has root's rights over files only if it is `mighty`.
        """
        done = self.warm(self.det, *arguments, mighty=mighty)
        if status is not None:
            assert done.returncode == status, (
                f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def json(self, *arguments: str | Path) -> Any:
        lines = self.quick(*arguments, "--json", status=0).stdout.splitlines()
        return json.loads(lines[0]) if len(lines) == 1 else [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def warm(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run `det` in a process that has torch already.

    Fails when the command leaves a process behind.
    """
    place = tmp_path_factory.mktemp("warm")
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("warm_start.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def run(
        det: Any, *arguments: str | Path, mighty: bool = True
    ) -> subprocess.CompletedProcess[str]:
        output = [place / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        request = {
            "argv": [str(argument) for argument in arguments],
            "cwd": str(det.cwd),
            "env": det.env({"DET_SLOTS_TOTAL": "2", "CUDA_VISIBLE_DEVICES": ""}),
            "stdout": str(output[0]),
            "stderr": str(output[1]),
            "mighty": mighty,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        assert line, "the process that runs the commands has died"
        answer = json.loads(line)
        texts = [path.read_bytes().decode(errors="replace") for path in output]
        _must_be_alone(answer["pid"])
        return subprocess.CompletedProcess(request["argv"], answer["status"], *texts)

    yield run
    server.stdin.close()
    server.wait(timeout=30)


def _must_be_alone(session: int, patience: float = 10.0) -> None:
    """Fail when a process of a session is left; it is given a little time to end."""
    deadline = time.monotonic() + patience
    while (left := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def _members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = entry.joinpath("stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
def project(det: Any, warm: Callable[..., subprocess.CompletedProcess[str]]) -> Iterator[Project]:
    """A project whose configuration and model are sound, until a row makes them otherwise.

    The store is looked at last.
    """
    made = Project(det, warm)
    yield made
    if made.sound:
        must_be_sound(made)


def must_be_sound(project: Project) -> None:
    """Look at the store as SQLite, as a driver and as a person do."""
    files = [*project.home.glob("experiments/*/experiment.db")]
    if not files:
        assert project.json("list") == []
        return
    for file in files:
        with sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            first, last, count = connection.execute(
                "SELECT min(seq), max(seq), count(*) FROM journal"
            ).fetchone()
            assert (first, last) in ((1, count), (None, None)), f"the journal of {file} has gaps"
            assert connection.execute("SELECT id FROM runs WHERE ended IS NULL").fetchall() == []
        connection.close()
    with sqlite3.connect(f"{(project.home / 'index.db').as_uri()}?mode=ro", uri=True) as connection:
        for table in ("leases", "waiting"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == [], table
    connection.close()
    for row in project.json("list"):
        experiment = row["experiment"]
        assert experiment["state"] in ("COMPLETED", "ERROR", "PAUSED", "CANCELED")
        shown = project.json("show", str(experiment["id"]))
        assert shown["experiment"]["id"] == experiment["id"]
        assert all(
            trial["state"] not in ("RUNNING", "QUEUED", "WAITING") for trial in shown["trials"]
        )
