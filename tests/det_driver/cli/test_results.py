"""What `det list`, `det show` and `det metrics` tell of a search."""

from __future__ import annotations

import os
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
            context.train.report_validation_metrics(batch, {"error": hparams["x"] / batch, "note": "n", "when": batch})
"""
CONFIG = """
    entrypoint: python3 train.py
    hyperparameters:
      x: {type: int, minval: 1, maxval: 4, count: 4}
      kind: {type: categorical, vals: [a]}
      net: {width: 64, lr: {type: log, minval: -4, maxval: 0, count: 1}}
    searcher: {name: grid, metric: error}
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
    directory.joinpath(f"{module}.py").write_text(f"raise ModuleNotFoundError('gone', name='{module}')\n")
    return {"PYTHONPATH": str(directory)}


def test_everything_that_a_finished_search_tells(det, finished, tmp_path):
    """One search, looked at in every way: running it takes longer than the looking."""
    out = det("show", "1").stdout.splitlines()
    assert "hyperparameters: kind=a  net.lr=" in out[2]
    assert "net.width=64" in out[2]
    header, first = out[4].split(), out[5].split()
    assert header[:6] == ["trial", "state", "best", "error", "at", "x"]
    assert first[2:5] == ["0.333333", "3", "1"]
    assert [t["hparams"]["x"] for t in det.json("show", "1", "--limit", "2")["trials"]] == [1, 2]

    pytest.importorskip("matplotlib")
    assert "drawn in trials.png" in det("show", "1", "--plot", "trials.png").stdout
    assert (det.cwd / "trials.png").read_bytes().startswith(b"\x89PNG")
    done = det("show", "1", "--plot", "x.png", status=2, env=hide(tmp_path / "a", "matplotlib"))
    assert done.stderr == "det: --plot draws with matplotlib, which is not installed; pip install matplotlib\n"

    parquet = pytest.importorskip("pyarrow.parquet")
    assert det("metrics", "1", "--parquet", "m.parquet").stdout == "12 reports written to m.parquet\n"
    table = parquet.read_table(det.cwd / "m.parquet").to_pydict()
    assert (max(table["error"]), table["batches"][:3], table["note"][0]) == (4.0, [1, 2, 3], "n")
    assert len(table["trial"]) == 12
    done = det("metrics", "1", "--parquet", "m.parquet", status=2, env=hide(tmp_path / "b", "pyarrow"))
    assert done.stderr == "det: --parquet writes with pyarrow, which is not installed; pip install pyarrow\n"
    done = det("metrics", "1", "--parquet", "no/where/m.parquet", status=2)
    assert done.stderr.startswith("det: cannot write no/where/m.parquet: ")


def test_an_experiment_whose_driver_died_is_marked_and_the_way_out_told(det, project, wait_until):
    driver = det.start("run", "c.yaml", env={"PAUSE": "100"})
    wait_until(lambda: det.home.joinpath("experiments/1/experiment.db").exists() and det.json("list"), "the experiment")
    wait_until(lambda: any(t["state"] == "RUNNING" for t in det.json("show", "1")["trials"]), "a run")
    assert "is gone" not in det("list").stdout
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    out = det("list").stdout
    assert "ACTIVE*" in out
    assert out.endswith("the driver of experiment 1 is gone; go on with: det resume 1\n")
    assert det.json("list")[0]["orphaned"] is True
    assert "its driver is gone; go on with: det resume 1" in det("show", "1").stdout
