"""`det rename`, `det label`, `det note` and `det compare`."""

from __future__ import annotations

import pytest

CONFIG = """
name: first
description: to begin with
labels: [a]
entrypoint: python3 train.py
hyperparameters: {x: {type: int, minval: 1, maxval: 2, count: 2}, width: 64}
searcher: {name: grid, metric: error, max_concurrent_trials: 1}
"""
TRAIN = """
import os, time
from det_core import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"error": context.info.trial.hparams["x"] / 4})
    while os.path.exists("hold"):
        time.sleep(0.05)
"""


@pytest.fixture
def project(det):
    det.cwd.joinpath("train.py").write_text(TRAIN)
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    return det


@pytest.mark.thorough
def test_experiment_is_renamed_labelled_annotated_and_found(project):
    det = project
    det("run", "c.yaml", "--quiet")
    det("run", "c.yaml", "--quiet", "--config", "hyperparameters.width=32")
    assert det("rename", "1", "digits").stdout == "experiment 1 is called digits\n"
    assert det("label", "1", "b", "c").stdout == "labels of experiment 1: a, b, c\n"
    assert det("label", "1", "--remove", "b").stdout == "labels of experiment 1: a, c\n"
    assert det("note", "1").stdout == "note on experiment 1: to begin with\n"
    assert det("note", "1", "the one to keep").stdout == "note on experiment 1: the one to keep\n"
    shown = det("show", "1").stdout
    assert shown.startswith("experiment 1 (digits) is completed, 100%\n")
    assert "\nlabels: a, c\nnote: the one to keep\n" in shown
    assert [e["experiment"]["id"] for e in [det.json("list", "--filter", "label=c")[0]]] == [1]
    assert [e["experiment"]["id"] for e in det.json("list", "--sort", "name")] == [1, 2]
    assert det.json("list", "--filter", "note~KEEP")[0]["experiment"]["name"] == "digits"
    assert "a, c" in det("list").stdout
    refused = det("label", "1", "--remove", "cc", status=2).stderr
    assert refused == "det: experiment 1 has no label 'cc'; did you mean 'c'?\n"
    assert det("rename", "1", " ", status=2).stderr.startswith(
        "det: the name is empty; give one by which you will know it"
    )
    assert det("label", "1", "--remove").stdout == "labels of experiment 1: none\n"

    rows = {
        line[:16].strip(): line[16:].split()
        for line in det("compare", "1", "2").stdout.splitlines()
    }
    assert rows["name"] == ["digits", "first"]
    assert rows["best"] == ["0.25", "0.25"]
    assert rows["with"] == ["x=1", "x=1"]
    compared = det.json("compare", "2", "1")
    assert [each["id"] for each in compared] == [2, 1]
    assert compared[0]["config"]["searcher"]["name"] == "grid"
    assert "one experiment cannot be compared" in det("compare", "1", "1", status=2).stderr
    assert det("compare", "1", "7", status=2).stderr.startswith("det: no experiment 7")


@pytest.mark.thorough
def test_one_that_runs_is_renamed_by_its_driver_and_goes_on(project, wait_until):
    det = project
    det.cwd.joinpath("hold").write_text("")
    driver = det.start("run", "c.yaml", "--quiet")
    wait_until(lambda: bool(det("metrics", "1", "--json", status=None).stdout), "a report")
    det("rename", "1", "while it runs")
    det("label", "1", "hot")
    det("note", "1", "later")
    row = det.json("list")[0]["experiment"]
    assert (row["name"], row["labels"], row["description"]) == (
        "while it runs",
        ["a", "hot"],
        "later",
    )
    (det.home / "experiments" / "1" / "code" / "hold").unlink()
    assert driver.wait(timeout=60) == 0
    assert det.json("show", "1")["experiment"]["name"] == "while it runs"
