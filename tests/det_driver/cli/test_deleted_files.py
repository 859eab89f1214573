"""What commands say after files of the home were deleted by hand."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\nmax_restarts: 0\n"
TRAIN = """
from det_core import core
with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("w")
    print("hello")
raise SystemExit(3)
"""


@pytest.fixture
def failed(det):
    det.cwd.joinpath("train.py").write_text(TRAIN)
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    det("run", "c.yaml", "--quiet", status=1)
    return det


@pytest.mark.thorough
def test_what_is_missing_is_named_with_what_can_be_done(failed):
    det = failed
    place = det.home / "experiments" / "1"

    shutil.rmtree(place / "trials")
    said = det("logs", "1", status=2).stderr
    assert (
        said
        == f"det: the logs of experiment 1 are gone: {place}/trials/1/run-1 and the like have been"
        " deleted\n"
    )

    shutil.rmtree(place / "code")
    said = det("resume", "1", status=2).stderr
    assert (
        said
        == f"det: the code of experiment 1 is gone: restore {place}/code, which it runs, or start"
        " it again\n"
    )

    shutil.rmtree(det.home / "checkpoints")
    assert "GONE" in det("checkpoint", "list", "1").stdout
    assert det(
        "checkpoint", "show", det.json("checkpoint", "list", "1")[0]["uuid"], status=2
    ).stderr.startswith("det: no checkpoint ")

    (place / "experiment.db").unlink()
    said = det("show", "1", status=2).stderr
    assert (
        said
        == f"det: experiment 1 has lost its experiment.db: restore {place}/experiment.db, or delete"
        " what is left there\n"
    )

    shutil.rmtree(place)
    assert (
        det("show", "1", status=2).stderr
        == f"det: no experiment 1; det list shows those in {det.home}\n"
    )
    assert det.json("list") == []


def test_an_experiment_that_never_ran_has_no_logs_yet(det):
    det.cwd.joinpath("c.yaml").write_text(CONFIG.replace("python3 train.py", "'true'"))
    from det_driver.client import Client

    Client(det.home).create_experiment(det.cwd / "c.yaml", det.cwd, start=False)
    done = det("logs", "1")
    assert (done.stdout, done.stderr) == (
        "",
        "det: no run of experiment 1 has started; see: det show 1\n",
    )


KILLED = """
import os, signal, sys
from det_driver.cli import main

def killed(event, arguments):
    if event == EVENT and "/experiments/1/" in str(arguments):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(killed)
raise SystemExit(main())
"""


@pytest.mark.sample
@pytest.mark.parametrize("event", ["open", "tempfile.mkstemp", "os.rename"])
def test_an_experiment_whose_creator_was_killed_is_none(det, event):
    det.cwd.joinpath("c.yaml").write_text(CONFIG.replace("python3 train.py", "'true'"))
    command = [
        sys.executable,
        "-c",
        KILLED.replace("EVENT", repr(event)),
        "run",
        "c.yaml",
        "--quiet",
    ]
    driver = subprocess.run(command, check=False, cwd=det.cwd, env=det.env(None))
    assert driver.returncode == -signal.SIGKILL
    assert det.home.joinpath("experiments/1").is_dir()
    assert (
        det("show", "1", status=2).stderr
        == f"det: no experiment 1; det list shows those in {det.home}\n"
    )
    det("run", "c.yaml", "--quiet")
    assert det("list").stdout.count("COMPLETED") == 1
