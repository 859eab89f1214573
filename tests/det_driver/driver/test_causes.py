"""Why runs and experiments ended.

Kept in the store, with the likely cause, and how far they had come.
"""

from __future__ import annotations

import textwrap

import pytest

CONFIG = "entrypoint: %s\nsearcher: {name: single, metric: error}\nmax_restarts: 1\n"
TRAIN = """
import sys
from det_core import core
with core.init() as context:
    context.train.report_progress(0.25)
    context.train.report_validation_metrics(1, {"other": 1.0})
    %s
"""


def write(det, line: str = "pass", entrypoint: str = "python3 train.py") -> None:
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(TRAIN) % line)
    det.cwd.joinpath("c.yaml").write_text(CONFIG % entrypoint)


def test_run_failure_reasons_are_kept_and_log_tail_is_shown(det):
    write(det, "print('about to give up'); sys.exit(5)")
    done = det("run", "c.yaml", status=1)
    assert "trial 1: the process exited with status 5" in done.stdout
    assert "det: trial 1 wrote last:\nabout to give up\n" in done.stderr
    assert done.stderr.endswith("det: trial 1: the process exited with status 5\n")
    shown = det("show", "1").stdout
    assert "experiment 1 (project) is error, 25%\n" in shown
    assert "\nbecause: trial 1: the process exited with status 5\n" in shown
    assert "\ntrial 1 run 1, from batch 0: the process exited with status 5\n" in shown
    attempts = det.json("show", "1", "--runs")["trials"][0]["attempts"]
    assert [run["reason"] for run in attempts] == ["the process exited with status 5"] * 2


def test_single_run_without_the_metric_completes_with_a_notice(det):
    write(det)
    notice = (
        "no trial has a usable 'error' (searcher.metric): validations reported other; report it, or"
        " name one of those"
    )
    assert (
        det("run", "c.yaml", "--quiet").stdout == f"experiment 1 is completed\nnotice: {notice}\n"
    )
    assert f"because: {notice}" in det("show", "1").stdout


@pytest.mark.thorough
def test_progress_of_what_was_canceled_is_what_had_been_reached(det, wait_until):
    write(det, "import time\n    while not context.preempt.should_preempt(): time.sleep(0.05)")
    driver = det.start("run", "c.yaml", "--quiet")
    wait_until(lambda: bool(det("metrics", "1", "--json", status=None).stdout), "a report")
    det("cancel", "1")
    assert driver.wait(timeout=60) == 1
    experiment = det.json("show", "1")["experiment"]
    assert (experiment["state"], experiment["progress"]) == ("CANCELED", 0.25)
