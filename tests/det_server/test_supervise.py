"""Drivers of experiments that users own are restarted, and not without end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.det_server.conftest import fill
from tests.det_server.test_remote import CONFIG, TRAIN, Running, server, signed_in, typed

from det_driver.store import ExperimentState, Store
from det_server import command
from det_server.supervise import LOOK_SECONDS, MOST_RESTARTS, Supervisor

__all__ = ["server", "signed_in"]
OF_ANN, OF_NOBODY = 1, 3


def wait_for_driver(home: Path, but: int) -> int:
    """Return the driver of experiment 4, once it is another one than `but`."""
    with Store.reader(home) as store:
        while True:
            found = store.experiments.get(4)
            if found.pid not in (None, but) and store.experiments.driven(4):
                return int(found.pid or 0)
            time.sleep(0.1)


def test_a_thread_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else no driver would be restarted any more, and nobody would see it."""
    monkeypatch.setattr(command, "_AGAIN_SECONDS", 0.01)
    stopped, looks = threading.Event(), list[int]()

    def run(stopped: threading.Event) -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            raise LookupError("no such engine")
        stopped.set()

    command._keep_running(run, stopped, name="det-server-supervisor")
    assert stopped.wait(10)
    assert looks == [0, 1, 2]
    assert capsys.readouterr().err.count("LookupError: no such engine") == 2


@pytest.mark.timeout(240)
def test_a_killed_driver_is_replaced_and_a_running_one_kept(
    signed_in: Running, tmp_path: Path
) -> None:
    code, gate = tmp_path / "code", tmp_path / "gate"
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("GATE", repr(str(gate))))
    (code / "const.yaml").write_text(CONFIG)
    assert typed("run", str(code / "const.yaml"), "--detach")[2] == 0
    first = wait_for_driver(signed_in.home, 0)
    os.kill(first, signal.SIGKILL)
    second = wait_for_driver(signed_in.home, first)
    signed_in.kill()
    signed_in.start()
    # It looks after its experiments within this time.
    time.sleep(2 * LOOK_SECONDS)
    assert wait_for_driver(signed_in.home, 0) == second
    gate.touch()
    with Store.reader(signed_in.home) as store:
        while store.experiments.get(4).state is ExperimentState.ACTIVE:
            time.sleep(0.1)
        assert store.experiments.get(4).state is ExperimentState.COMPLETED
        # Nothing was trained twice: the second driver went on with the run of the first.
        assert [run.number for run in store.runs.list(store.trials.list(4)[0].id)] == [1]


@pytest.mark.process
def test_a_driver_that_ends_at_once_is_restarted_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NEW_SECONDS", "FIRST_SECONDS"):
        monkeypatch.setattr(f"det_server.supervise.{name}", 0.0)
    home = tmp_path / "home"
    users = fill(home)
    with Store(home) as store:
        for id in (OF_ANN, OF_NOBODY):
            store.experiments.update(id, state=ExperimentState.ACTIVE, ended=None)
    # Python finds no standard library, so each driver ends at once.
    environ = {**os.environ, "PYTHONHOME": str(tmp_path)}
    supervisor = Supervisor(home, users, environ)
    for _ in range(MOST_RESTARTS + 3):
        supervisor.look(threading.Event())
    with Store.reader(home) as store:
        paused = store.experiments.get(OF_ANN)
        assert store.experiments.get(OF_NOBODY).state is ExperimentState.ACTIVE
    assert (paused.state, paused.reason) == (
        ExperimentState.PAUSED,
        "its driver ended 6 times without progress; see why: det logs --driver 1; go on with: det"
        " resume 1",
    )
    said = capsys.readouterr().err
    assert said.count("experiment 1 has lost its driver; starting another one") == MOST_RESTARTS
    assert said.count("ended at once") == MOST_RESTARTS
    assert said.count("experiment 1 is paused: its driver ended 6 times") == 1
