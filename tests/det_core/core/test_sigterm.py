"""SIGTERM to the processes of a script, as a cluster sends it that wants its machine back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

CONFIG = (
    "entrypoint: {entrypoint}\nresources: {{slots_per_trial: {slots}}}\nmax_restarts: 0\n"
    "searcher: {{name: single, metric: error}}\n"
)

SCRIPT = """
import os, pathlib, signal, sys, time
from det_core import DistributedContext, core

ranks = DistributedContext.from_socket() if "DET_RANKS_KEY" in os.environ else None
with core.init(distributed=ranks) as context:
    info, batch = context.info, 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            batch = int((path / "batch").read_text())
        print("goes on from", batch, flush=True)
    first = batch == 0
    while batch < 30:
        batch += 1
        time.sleep(0.05 if first else 0)
        if first and batch == 10:
            pathlib.Path(f"pid-{os.environ.get('DET_RANK', '0')}").write_text(str(os.getpid()))
        if context.preempt.should_preempt():
            if ranks is None or ranks.rank == 0:
                with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                    (path / "batch").write_text(str(batch))
            print("saved at", batch, flush=True)
            sys.exit(0)
    if ranks is None or ranks.rank == 0:
        context.train.report_validation_metrics(batch, {"error": 0.5})
print("restored", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""


def start(
    det, script: str, *, slots: int = 1, entrypoint: str = "python3 train.py"
) -> subprocess.Popen[str]:
    det.cwd.joinpath("train.py").write_text(script)
    det.cwd.joinpath("c.yaml").write_text(CONFIG.format(entrypoint=entrypoint, slots=slots))
    process = subprocess.Popen(
        det.argv(["run", "c.yaml", "--quiet"]),
        cwd=det.cwd,
        env=det.env(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    det.started.append(process)
    return process


def noted(det, rank: int = 0) -> list[Path]:
    # Directories that the training deletes meanwhile are passed over, which `rglob` does not do.
    files = [
        Path(folder, f"pid-{rank}")
        for root in (det.home, det.cwd)
        for folder, _, names in os.walk(root)
        if f"pid-{rank}" in names
    ]
    return [file for file in files if file.read_text()]


def test_a_script_saves_at_sigterm_and_goes_on_from_there(det, wait_until) -> None:
    """`max_restarts` is 0: to be asked to leave is no failure."""
    process = start(det, SCRIPT)
    wait_until(lambda: noted(det), "some training", 100)
    os.kill(int(noted(det)[0].read_text()), signal.SIGTERM)
    process.communicate(timeout=200)
    if process.returncode == 130:  # paused, as nothing else is to be done
        det("resume", "1")
    logs = det("logs", "1").stdout
    saved = int(logs.partition("saved at ")[2].split()[0])
    assert 10 <= saved < 30
    assert f"goes on from {saved}" in logs
    assert "restored True" in logs


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_save_where_one_of_them_is_asked(det, wait_until, rank: int) -> None:
    process = start(
        det, SCRIPT, slots=2, entrypoint="python3 -m det_node.launch.socket python3 train.py"
    )
    wait_until(lambda: noted(det, rank), "some training", 100)
    os.kill(int(noted(det, rank)[0].read_text()), signal.SIGTERM)
    process.communicate(timeout=200)
    logs = det("logs", "1").stdout
    assert logs.count("saved at ") == 2


OWN = """
import os, pathlib, signal, time
from det_core import core

def mine(number, frame):
    pathlib.Path("mine").write_text("heard")

signal.signal(signal.SIGTERM, mine)
with core.init() as context:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print("preempted", context.preempt.should_preempt(), pathlib.Path("mine").exists(), flush=True)
    context.train.report_validation_metrics(1, {"error": 0.5})
"""


def test_a_script_keeps_a_handler_of_its_own(det) -> None:
    process = start(det, OWN)
    process.communicate(timeout=200)
    assert "preempted False True" in det("logs", "1").stdout


SAVES = """
import json, os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
from det_core import core

with core.init() as context:
    start = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            start = int((path / "batch").read_text())
        print("goes on from", start, flush=True)
    for batch in range(start + 1, 1000 if start == 0 else start + 2):
        context.train.report_validation_metrics(batch, {"error": 1 / batch})
        open("started", "w").close()
        time.sleep(0.05)
        if stop:
            with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                (path / "batch").write_text(str(batch))
            sys.exit(0)
"""


def test_a_script_with_its_own_handler_resumes_after_a_pause(det, wait_until) -> None:
    """It gets SIGTERM after half of `preemption_timeout`, and never asks `should_preempt()`."""
    det.cwd.joinpath("train.py").write_text(SAVES)
    config = CONFIG.format(entrypoint="python3 train.py", slots=1).replace(
        "name: single,", "name: single, max_length: {batches: 1000},"
    )
    det.cwd.joinpath("c.yaml").write_text(config + "preemption_timeout: 4\n")
    driver = det.start("run", "c.yaml", "--quiet")
    wait_until((det.home / "experiments/1/code/started").exists, "some training")
    det("pause", "1")
    driver.wait(timeout=100)
    assert det.json("show", "1")["trials"][0]["state"] == "PAUSED"
    det("resume", "1", "--quiet")
    assert "goes on from" in det("logs", "1").stdout


DEAF = """
import os, signal, time
import det_core.core._context as context
context.SIGTERM_AGAIN_SECONDS = 0.5
kept = context.init()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1)
print("still here", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
print("deaf", flush=True)
"""


def test_a_second_sigterm_ends_a_script_that_never_asks(det) -> None:
    process = start(det, DEAF)
    process.communicate(timeout=200)
    logs = det("logs", "1").stdout
    assert "still here" in logs
    assert "deaf" not in logs
