"""What `det list`, `det show` and `det metrics` tell of a search."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap

import pytest

TRIAL = """
    import os, time
    from det_core import core
    info = core.get_cluster_info()
    hparams = info.trial.hparams
    time.sleep(float(os.environ.get("PAUSE", "0")))
    with core.init() as context:
        for batch in (1, 2, 3):
            metrics = {"error": hparams["x"] / batch, "note": "n", "when": batch, "gap": float("nan"), "top": float("inf")}
            context.train.report_validation_metrics(batch, metrics)
"""
CONFIG = """
    entrypoint: python3 train.py
    hyperparameters:
      x: {type: int, minval: 1, maxval: 4, count: 4}
      kind: {type: categorical, vals: [a]}
      net: {width: 64, lr: {type: log, minval: -4, maxval: 0, count: 1}}
    searcher: {name: grid, metric: error}
"""

WRITTEN = ("rank of the trial", "net.lr", "x", "kind", "error", "trial", r"$\mathdefault{10^{-2}}$")
"""In the pictures: the legend has a title.

net.lr is declared logarithmic, and its axis has powers of ten.
"""


@pytest.fixture
def project(det):
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(TRIAL))
    det.cwd.joinpath("c.yaml").write_text(textwrap.dedent(CONFIG))
    return det.cwd


@pytest.fixture
def finished(det, project):
    det("run", "c.yaml", "--quiet")
    return project


def hide(directory, module):
    """Make a module look as if it were not installed."""
    directory.mkdir()
    directory.joinpath(f"{module}.py").write_text(
        f"raise ModuleNotFoundError('gone', name='{module}')\n"
    )
    return {"PYTHONPATH": str(directory)}


MADE = (
    r"began 20\d\d-\d\d-\d\d \d\d:\d\d, took 0:\d\d; made on \S+ with Python 3\.\d+\.\d+, \d+"
    r" packages"
)


@pytest.mark.thorough
def test_everything_that_a_finished_search_tells(det, finished, tmp_path):
    """One search, looked at in every way: running it takes longer than the looking."""
    for limit in (
        [],
        ["--limit", "1"],
    ):  # which hyperparameters were chosen does not depend on what is shown
        out = det("show", "1", *limit).stdout.splitlines()
        assert re.fullmatch(MADE, f"{out[1]}; {out.pop(3)}")
        assert [out[3], out.pop(4)] == [
            "hyperparameters: net.width=64",
            "what mattered: too few trials to tell; 8 are needed, and 4 can be compared",
        ]
        header, first = out[5].split(), out[6].split()
        assert header == [
            "trial",
            "state",
            "best",
            "error",
            "at",
            "x",
            "kind",
            "net.lr",
            "batches",
            "runs",
            "restarts",
            "took",
        ]
        assert first[2:6] == ["0.333333", "3", "1", "a"]
    assert [t["hparams"]["x"] for t in det.json("show", "1", "--limit", "2")["trials"]] == [1, 2]

    picked = det.json(
        "show",
        "1",
        "--filter",
        "x>=2",
        "--filter",
        "state=COMPLETED",
        "--sort",
        "-x",
        "--limit",
        "2",
    )
    assert [t["hparams"]["x"] for t in picked["trials"]] == [4, 3]
    assert picked["experiment"]["importances"] == {}, "four trials say nothing of that"
    refused = det("show", "1", "--sort", "lrr", status=2).stderr
    assert refused == "det: there is no column 'lrr'; did you mean 'lr'?\n"
    runs = det("show", "1", "--runs", "--filter", "x=1").stdout.splitlines()
    assert runs[0].split() == [
        "trial",
        "run",
        "host",
        "from",
        "batch",
        "began",
        "took",
        "ended",
        "because",
    ]
    assert runs[1].split()[-1] == "completed"
    assert det.json("show", "1", "--runs")["trials"][0]["attempts"][0]["outcome"] == "completed"
    slices = det("show", "1", "--slice", "x").stdout.splitlines()
    assert slices[0].split() == ["x", "trials", "best", "error", "median"]
    assert [line.split()[0] for line in slices[1:]] == ["1", "3"]
    assert det.json("show", "1", "--slice", "kind")[0]["trials"] == 4
    refused = det("show", "1", "--slice", "knid", status=2).stderr
    assert refused == "det: no trial of experiment 1 has a chosen 'knid'; did you mean 'kind'?\n"

    lines = det("metrics", "1", "--csv").stdout.splitlines()
    assert (
        lines[0]
        == "trial,group,batches,hparams.x,hparams.kind,hparams.net.lr,error,note,when,gap,top"
    )
    assert len({line.split(",")[3] for line in lines[1:]}) == 4
    refused = det("metrics", "1", "--group", "validaton", status=2).stderr
    assert (
        refused
        == "det: experiment 1 has no metrics of the group 'validaton'; did you mean 'validation'?\n"
    )
    assert det("metrics", "1", "--trial", "77", status=2).stderr.startswith("det: no trial 77")
    assert isinstance(det.json("list")[0]["experiment"]["config"], dict)

    completed = det(
        env={"_DET_COMPLETE": "bash_complete", "COMP_WORDS": "det show ", "COMP_CWORD": "2"}
    ).stdout
    assert completed.splitlines() == ["plain,1"]

    pytest.importorskip("matplotlib")
    assert "drawn in trials.png" in det("show", "1", "--plot", "trials.png").stdout
    assert (det.cwd / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert det("show", "1", "--plot", "t.svg", "--json").stdout.startswith("{")
    drawn = (det.cwd / "t.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in WRITTEN)
    done = det("show", "1", "--plot", "x.png", status=2, env=hide(tmp_path / "a", "matplotlib"))
    assert (
        done.stderr
        == "det: --plot draws with matplotlib, which is not installed; pip install matplotlib\n"
    )

    parquet = pytest.importorskip("pyarrow.parquet")
    assert (
        det("metrics", "1", "--parquet", "m.parquet").stdout == "12 reports written to m.parquet\n"
    )
    table = parquet.read_table(det.cwd / "m.parquet").to_pydict()
    assert (max(table["error"]), table["batches"][:3], table["note"][0]) == (4.0, [1, 2, 3], "n")
    assert len(table["trial"]) == 12
    done = det(
        "metrics", "1", "--parquet", "m.parquet", status=2, env=hide(tmp_path / "b", "pyarrow")
    )
    assert (
        done.stderr
        == "det: --parquet writes with pyarrow, which is not installed; pip install pyarrow\n"
    )
    done = det("metrics", "1", "--parquet", "no/where/m.parquet", status=2)
    assert done.stderr.startswith("det: cannot write no/where/m.parquet: ")


def test_numbers_that_json_has_not_are_text(det, finished):
    def refused(name):
        raise AssertionError(f"{name} is no JSON")

    rows = [
        json.loads(line, parse_constant=refused)
        for line in det("metrics", "1", "--json").stdout.splitlines()
    ]
    assert {(row["metrics"]["gap"], row["metrics"]["top"]) for row in rows} == {("NaN", "Infinity")}


@pytest.mark.thorough
def test_experiment_with_a_dead_driver_is_marked_with_a_remedy(det, project, wait_until):
    driver = det.start("run", "c.yaml", env={"PAUSE": "100"})
    wait_until(
        lambda: det.home.joinpath("experiments/1/experiment.db").exists() and det.json("list"),
        "the experiment",
    )
    wait_until(
        lambda: any(t["state"] == "RUNNING" for t in det.json("show", "1")["trials"]), "a run"
    )
    assert "is gone" not in det("list").stdout
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    out = det("list").stdout
    assert "ACTIVE*" in out
    assert out.endswith("the driver of experiment 1 is gone; go on with: det resume 1\n")
    assert det.json("list")[0]["orphaned"] is True
    assert "the driver of experiment 1 is gone; go on with: det resume 1" in det("show", "1").stdout
