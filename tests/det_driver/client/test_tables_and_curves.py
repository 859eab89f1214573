"""What a page and a notebook ask for without reading everything.

Tables, curves, parts of logs, what has changed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from det_core.config import parse, to_json
from det_core.errors import ConfigError, DetError, StoreError
from det_driver.client import Client, Trial, read_log
from det_driver.store import Store, TrialState

CONFIG = {
    "entrypoint": "python3 train.py",
    "hyperparameters": {
        "lr": {"type": "log", "minval": -3, "maxval": -1},
        "net": {"layers": 2},
        "batch": 32,
    },
    "searcher": {"name": "random", "metric": "loss", "max_trials": 3},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one experiment, whose lock is not held."""
    store = Store(tmp_path / "home")
    store.experiments.create(name="x", config=to_json(parse(CONFIG).config), metric="loss")
    return store


def add_trial(store: Store, request: int = 0, lr: float = 0.1, layers: int = 2) -> int:
    hparams = {"lr": lr, "net": {"layers": layers}, "batch": 32}
    return store.trials.create(1, request, hparams, 0).id


@pytest.fixture
def trial(store: Store) -> Trial:
    """A trial with 1,000 reports, in chunks and in rows, that rises by one at each.

    It has a peak, a dip, a NaN and a word besides.
    """
    strange = {301: 5000.0, 302: -5000.0, 600: math.nan, 700: "none"}
    with store.lock(1), store.transaction():
        id = add_trial(store)
        run = store.runs.begin(id)
        for batch in range(1, 1001):
            values = {"loss": strange.get(batch, float(batch)), "epochs": batch / 100}
            store.metrics.report(
                id, run.id, "training", batch, values | ({"late": 1} if batch > 900 else {})
            )
    return Client(store.home).get_trial(id)


def test_table_has_all_trials_and_only_differing_hyperparameters(store: Store) -> None:
    with store.lock(1):
        add_trial(store, 0, 0.1)
        store.metrics.report(add_trial(store, 1, 0.2), 1, "validation", 5, {"loss": 0.5})
    table = Client(store.home).get_experiment(1).table()
    assert table.columns["id"] == [1, 2]
    assert table.columns["state"] == ["QUEUED", "QUEUED"]
    assert (table.columns["best_metric"], table.columns["best_batches"]) == ([None, 0.5], [None, 5])
    assert table.hparams == {"lr": [0.1, 0.2]}, "neither what is constant, nor the same in all"


def test_table_since_another_has_only_changed_and_new_trials(store: Store) -> None:
    experiment = Client(store.home).get_experiment(1)
    with store.lock(1):
        first, second = add_trial(store, 0), add_trial(store, 1)
        store.trials.update(first, state=TrialState.COMPLETED)
        before = experiment.table()
        assert experiment.table(since=before).columns["id"] == []
        store.trials.update(second, state=TrialState.COMPLETED)
        third = add_trial(store, 2, layers=3)
        after = experiment.table(since=before)
    assert after.columns["id"] == [second, third]
    assert after.columns["state"] == ["COMPLETED", "QUEUED"]
    assert after.hparams["net.layers"] == [2, 3], "a constant that was altered is shown"
    assert experiment.table(since=after).columns["id"] == []


def test_a_table_is_a_data_frame_where_pandas_is_installed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        DetError, match="a DataFrame comes with pandas, which is not installed; pip install pandas"
    ):
        Client(store.home).get_experiment(1).to_frame()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    with store.lock(1):
        add_trial(store)
    frame = Client(store.home).get_experiment(1).to_frame()
    assert (list(frame["id"]), list(frame["hparams.lr"])) == ([1], [0.1])


def test_curve_keeps_extreme_values_and_both_ends(trial: Trial) -> None:
    curve = trial.series("loss", width=10)
    points = dict(zip(curve.x, curve.y, strict=True))
    assert curve.reports == 1000
    assert len(points) <= 22
    assert (points[301], points[302], points[1], points[1000]) == (5000.0, -5000.0, 1.0, 1000.0)
    assert list(points) == sorted(points)


def test_short_curve_has_every_report_and_nan_for_non_numbers(trial: Trial) -> None:
    curve = trial.series("loss", width=1000, range=(599, 701))
    assert (curve.x[0], curve.x[-1], curve.reports) == (599, 701, 103)
    assert [x for x, y in zip(curve.x, curve.y, strict=True) if math.isnan(y)] == [600, 700]


def test_a_part_of_a_curve_that_is_nan_alone_is_one_nan(store: Store) -> None:
    with store.lock(1), store.transaction():
        id = add_trial(store)
        for batch in range(100):
            store.metrics.report(
                id, 1, "training", batch, {"loss": math.nan if batch >= 50 else 1.0 / (1 + batch)}
            )
    curve = Client(store.home).get_trial(id).series("loss", width=4)
    assert [math.isnan(y) for y in curve.y] == [x >= 50 for x in curve.x]
    assert max(curve.x) == 99


def test_a_curve_along_epochs_or_seconds(trial: Trial, store: Store) -> None:
    assert trial.series("loss", range=(1.005, 1.025), by="epochs").x == [1.01, 1.02]
    seconds = trial.series("loss", by="seconds", width=2000).x
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < seconds[-1] <= trial.seconds
    assert trial.series("late").reports == 100, "only what has the metric"
    assert trial.series("loss", group="nothing").reports == 0


def test_curve_of_a_rewound_trial_has_each_position_once(trial: Trial, store: Store) -> None:
    with store.lock(1):
        store.runs.begin(trial.id, 400)
        store.metrics.report(trial.id, 2, "training", 401, {"loss": -1.0})
    curve = trial.series("loss", width=1000)
    assert (curve.x[-2:], curve.y[-1]) == ([400, 401], -1.0)


def test_log_is_read_in_whole_lines_from_any_byte_or_the_end(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.log"
    lines = [f"line {n} ä\n" for n in range(1000)]
    file.write_text("".join(lines), encoding="utf-8")
    end = read_log(file, -100, 65536)
    assert end.text.splitlines(keepends=True) == lines[-len(end.text.splitlines()) :]
    assert end.end == end.size == file.stat().st_size
    parts, offset = [], 0
    while offset < end.size:
        part = read_log(file, offset, 300)
        assert part.offset == offset
        assert part.text.endswith("\n")
        parts.append(part.text)
        offset = part.end
    assert "".join(parts) == "".join(lines)
    assert read_log(file, -(10**9), 20).text == "".join(lines[:2])
    assert read_log(file, 10**9, 20).text == ""


def test_unfinished_line_is_read_up_to_its_last_whole_character(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.log"
    file.write_bytes("done\nhalf ä".encode()[:-1])
    part = read_log(file, 0, 100)
    assert (part.text, part.size - part.end) == ("done\nhalf ", 1)


def test_a_log_that_is_not_there_is_named(trial: Trial) -> None:
    with pytest.raises(
        StoreError,
        match=r"run 1 of trial 1 has no log of rank 3; log_files\(\) has those there are",
    ):
        trial.log(3)


SCRIPT = """
import os, time
from det_core import core

with core.init() as context:
    for step in range(1, 3):
        context.train.report_validation_metrics(step, {"loss": 1 / step})
    while os.path.exists("WAIT"):
        time.sleep(0.05)
"""


def test_what_a_driver_commits_is_seen_by_who_watches(det: Any, wait_until: Any) -> None:
    gate = det.cwd / "gate"
    gate.touch()
    det.cwd.joinpath("train.py").write_text(SCRIPT.replace("WAIT", str(gate)))
    client = Client(det.home)
    single = {
        **CONFIG,
        "searcher": {"name": "single", "metric": "loss"},
        "hyperparameters": {"lr": 0.1},
    }
    experiment = client.create_experiment(single, det.cwd, start=False)
    assert experiment.seconds == 0.0
    watch = client.watch(seconds=0.01)
    assert watch.look() == (frozenset(), {})
    experiment.activate()
    wait_until(lambda: any(1 in change.trials for change in [watch.look()]), "the trial to be made")
    wait_until(lambda: experiment.list_trials()[0].batches == 2, "the trial to report")
    wait_until(lambda: not watch.look().experiments, "what was committed to have been seen")
    experiment.set_name("other")
    assert next(iter(watch)).experiments == {1}
    gate.unlink()
    assert experiment.wait() == "COMPLETED"
    seen = watch.look()
    assert (seen.experiments, seen.trials) == ({1}, {1: {1}})
    assert experiment.list_trials()[0].log().text == "".join(experiment.list_trials()[0].logs())
    experiment.delete()
    assert watch.look().experiments == {1}
    watch.close()


def test_a_fork_has_the_same_code_and_another_configuration(det: Any) -> None:
    det.cwd.joinpath("train.py").write_text(SCRIPT.replace("WAIT", "nothing"))
    experiment = Client(det.home).create_experiment(
        {**CONFIG, "name": "first"}, det.cwd, start=False
    )
    same = experiment.fork(start=False)
    other = experiment.fork({**CONFIG, "name": "second"}, start=False)
    assert (same.name, other.name, other.state) == ("first", "second", "PAUSED")
    assert Path(other.download_code(det.cwd / "code"), "train.py").read_text() == SCRIPT.replace(
        "WAIT", "nothing"
    )
    with pytest.raises(ConfigError, match="sercher"):
        experiment.fork({**CONFIG, "sercher": {}})
    assert len(Client(det.home).list_experiments()) == 3
