"""A server is killed at any of its writes, and started again, while a user submits experiments.

A run without a fault counts the writes. A sample of them is tried by default, and `--kills=0` tries
all (`nox -s chaos`).
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from tests.det_server.conftest import PASSWORD
from tests.det_server.test_remote import Running
from tests.support.faults import build_faults

from det_driver.config import load
from det_driver.remote import Lost, RemoteServer, submit_experiment
from det_driver.store import ExperimentState, Store
from det_server import Role, Users

TRAIN = """\
import os
from det_core import core

with core.init() as context:
    with open(RAN, "a") as ran:
        ran.write(os.environ["DET_EXPERIMENT_ID"] + "\\n")
    context.train.report_validation_metrics(1, {"loss": 1.0})
"""
CONFIG = """\
name: NAME
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
resources: {slots_per_trial: 0}
check_first: false
"""
EXPERIMENTS = ("first", "second")
# What takes longer has lost an experiment.
LIMIT_SECONDS = 120.0

T = TypeVar("T")

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Struck(Running):
    """A server that is killed at a write, and started again whenever it is dead."""

    def __init__(self, place: Path, faults: Path, at: int) -> None:
        self.count, self.restarts, self._place = place / "count", 0, place
        self._strike = {
            "LD_PRELOAD": str(faults),
            "FAULT_KIND": "kill",
            "FAULT_AT": str(at),
            "FAULT_ROOT": str(place / "home"),
            "FAULT_COUNT": str(self.count),
        }
        self._ended = threading.Event()
        Users(place / "home").add("ann", Role.EDITOR, PASSWORD)
        super().__init__(place / "home")
        self._watch = threading.Thread(target=self._keep_running)
        self._watch.start()

    def start(self) -> None:
        environ = {**os.environ, "DET_HOME": str(self.home), "DET_MASTER": "", **self._strike}
        self._strike = {}
        argv = [sys.executable, "-P", "-m", "det_driver.cli", "server", "start"]
        with (self._place / "said").open("a") as said:
            self.process = subprocess.Popen(
                [*argv, "--port", str(self.port)], stdout=said, stderr=said, env=environ
            )

    def _keep_running(self) -> None:
        while not self._ended.wait(0.05):
            if self.process.poll() is not None:
                assert self.process.returncode == -signal.SIGKILL, self.said
                self.restarts += 1
                self.start()

    def __enter__(self) -> Struck:
        return self

    def __exit__(self, *ignored: object) -> None:
        self._ended.set()
        self._watch.join()
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)

    @property
    def said(self) -> str:
        return (self._place / "said").read_text()

    @property
    def writes(self) -> list[str]:
        """What was written, and to which files, without the numbers in their names."""
        lines = self.count.read_text().splitlines() if self.count.exists() else []
        return ["".join("N" if c.isdigit() else c for c in line) for line in lines]


def retried(act: Callable[[], T]) -> T:
    """Do what a person does: try again until the server answers."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            return act()
        except Lost:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def use(place: Path, faults: Path, at: int) -> Struck:
    """Sign in, submit the experiments, and wait for their ends. Return the server, which is gone."""
    code, ran = place / "code", place / "ran"
    code.mkdir()
    (code / "train.py").write_text(f"RAN = {str(ran)!r}\n{TRAIN}")
    with Struck(place, faults, at) as server:
        address = server.address
        body = {"name": "ann", "password": PASSWORD}
        token = retried(lambda: RemoteServer(address).post("/session", body))["token"]
        remote = RemoteServer(address, token)
        made = []
        for name in EXPERIMENTS:
            text = CONFIG.replace("NAME", name)
            config = load(text).config
            made.append(
                retried(lambda: submit_experiment(remote, text, config, code, name=name))  # noqa: B023
            )
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            listed = retried(lambda: remote.get("/experiments"))["columns"]
            states = dict(zip(listed["id"], listed["state"], strict=True))
            if {*states.values()} == {ExperimentState.COMPLETED} and len(states) >= len(made):
                break
            assert time.monotonic() < deadline, (states, server.said)
            time.sleep(0.1)
        # Another look, as a submission that was made twice would be started now.
        assert states.keys() == {*made}, server.said
    with Store.reader(place / "home") as store:
        found = {each.experiment.id: each for each in store.experiments.list(unread={})}
        assert sorted(each.experiment.name for each in found.values()) == sorted(EXPERIMENTS)
        trials = [trial for id in found for trial in store.trials.list(id)]
        assert [trial.runs for trial in trials] == [1, 1]
        assert all(users_of(place, id) == "ann" for id in found)
    assert sorted(ran.read_text().split()) == sorted(map(str, made))
    for database in (place / "home").glob("**/*.db"):
        with closing(sqlite3.connect(database)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], database
    return server


def users_of(place: Path, id: int) -> str | None:
    with Store.reader(place / "home") as store:
        created = store.experiments.get(id).created
    return Users(place / "home").owner(id, created)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that kills a process at one of its writes."""
    return build_faults(tmp_path_factory.mktemp("faults"))


def test_no_experiment_is_lost_or_made_twice(
    processes: object, faults: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Nor is a trial run twice."""
    (tmp_path / "whole").mkdir()
    whole = use(tmp_path / "whole", faults, 0)
    assert whole.restarts == 0
    seed = int(os.environ.get("DET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    every, kills = range(1, len(whole.writes) + 1), pytestconfig.getoption("--kills")
    print(f"DET_CHAOS_SEED={seed}, {len(every)} writes")
    where, wrong = Counter[str](), list[str]()
    for at in random.Random(seed).sample(every, kills or len(every)):
        place = tmp_path / str(at)
        place.mkdir()
        try:
            server = use(place, faults, at)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"write {at}: {type(error).__name__}: {error}")
            print(wrong[-1], flush=True)
        else:
            # Not every run writes as often.
            where[server.writes[at - 1] if server.restarts else "nothing"] += 1
    print("\n".join(f"{count:6} {what}" for what, count in sorted(where.items())))
    assert not wrong, "\n".join(wrong)
