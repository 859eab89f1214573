"""`det run … 2>&1 | tee log` and Ctrl-C, which ends `tee` as well."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = """
import pathlib, sys, time
from det_core import core
with core.init() as context:
    for batch in range(1, 2000):
        time.sleep(0.02)
        context.train.report_training_metrics(batch, {"loss": 1.0})
        pathlib.Path(sys.argv[1]).write_text(str(batch))
        if context.preempt.should_preempt():
            with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                (path / "batch").write_text(str(batch))
            sys.exit(0)
"""


@pytest.mark.sample
@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_reader_that_leaves_costs_no_trial(
    det, wait_until, tmp_path: Path, options: list[str]
) -> None:
    (det.cwd / "train.py").write_text(SCRIPT)
    (det.cwd / "c.yaml").write_text(
        f"entrypoint: python3 train.py {tmp_path}/batch\nmax_restarts: 0\nsearcher: {{name: single,"
        " metric: error}\n"
    )
    read, write = os.pipe()
    process = subprocess.Popen(
        det.argv(["run", "c.yaml", *options]),
        cwd=det.cwd,
        env=det.env(None),
        stdout=write,
        stderr=write,
    )
    det.started.append(process)
    os.close(write)
    wait_until((tmp_path / "batch").exists, "some training", 30)
    os.close(read)
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    assert "PAUSED" in det("list", "--json").stdout.upper()
    assert [path for path in (det.home / "checkpoints").iterdir() if (path / "batch").exists()]


def test_error_follows_earlier_output_in_one_pipe(det) -> None:
    (det.cwd / "model_def.py").write_text("")
    (det.cwd / "c.yaml").write_text(
        "entrypoint: model_def:Trial\nsearcher: {name: single, metric: x, max_length: 1}\n"
    )
    env = {name: value for name, value in det.env(None).items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        det.argv(["check", "c.yaml"]),
        cwd=det.cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert [line.split(" ")[0] for line in done.stdout.splitlines()] == ["c.yaml", "det:"]
