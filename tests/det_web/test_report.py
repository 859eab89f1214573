"""`det report N --html FILE`: one file that holds all it shows, and runs nothing."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import ExperimentState, Store, TrialState
from det_web.report import _curves, make_report, report

CONFIG = """
name: "odd <script>alert(1)</script>"
description: "a note </pre><img src=x onerror=alert(2)>"
entrypoint: python3 train.py
hyperparameters:
  lr: {type: double, minval: 0.01, maxval: 0.1}
  act: {type: categorical, vals: ["<b>relu</b>", tanh]}
searcher: {name: random, metric: error, max_trials: 9, max_length: {batches: 4}}
environment: {environment_variables: [API_TOKEN=hush]}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a search of nine trials that reported twice each."""
    with Store(tmp_path / "home") as store:
        loaded = load(CONFIG).config
        id = store.experiments.create(
            name=loaded.name or "",
            config=to_json(loaded),
            metric="error",
            entrypoint="python3 train.py",
        ).id
        with store.lock(id):
            store.experiments.update(
                id,
                description=loaded.description or "",
                started=1.0,
                ended=9.0,
                state=ExperimentState.COMPLETED,
            )
            for i in range(9):
                trial = store.trials.create(id, i, {"lr": i / 100 + 0.01, "act": "<b>relu</b>"}, i)
                run = store.runs.begin(trial.id)
                for batches in (2, 4):
                    store.metrics.report(
                        trial.id, run.id, "validation", batches, {"error": (i + 1) / batches}
                    )
                store.trials.update(trial.id, state=TrialState.ERROR, exit_reason="<i>cats</i>")
    return tmp_path / "home"


def test_a_report_holds_everything_and_runs_and_loads_nothing(home: Path) -> None:
    page = make_report(home, 1)
    assert "hush" not in page
    assert not re.search(r"<(script|img|link|iframe|i|b)[ >]|https?://|@import|url\(", page)
    assert page.count("<polyline") == 9
    text = unescape(re.sub(r"<[^>]*>", " ", page))
    for each in (
        "odd <script>alert(1)</script>",
        "a note </pre><img",
        "<b>relu</b>",
        "<i>cats</i>",
        "API_TOKEN",
    ):
        assert each in text, each
    assert re.search(r"0\.25\s+best error\s+by trial 1", text)
    shares = [int(each) for each in re.findall(r"(\d+) %", text)]
    assert sum(shares) == 100
    (heads,) = re.findall(r"<h2>Trials</h2>.*?<tr>(<th.*?)</tr>", page)
    first = re.findall(r"<h2>Trials</h2>.*?<tbody><tr>(.*?)</tr>", page)[0]
    assert ['class="n"' in each for each in re.findall(r"<th[^>]*>", heads)] == [
        'class="n"' in each for each in re.findall(r"<td[^>]*>", first)
    ]
    rows = re.findall(r"<tr><td class=.n.>(\d+)</td><td>error", page)
    assert rows == [str(each) for each in range(1, 10)], "the best come first"


def test_the_command_writes_the_file_or_says_why_it_cannot(home: Path, tmp_path: Path) -> None:
    settings = type("Settings", (), {"home": home})()
    file = tmp_path / "report.html"
    done = CliRunner().invoke(
        report, ["1", "--html", str(file)], obj=settings, catch_exceptions=False
    )
    assert (done.exit_code, done.output) == (0, f"the report of experiment 1 is in {file}\n")
    assert file.read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(
        report, ["1", "--html", str(tmp_path / "no" / "x.html")], obj=settings
    )
    assert "cannot write" in str(done.exception)


def test_a_file_that_is_not_named_is_named_after_the_experiment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = type("Settings", (), {"home": home})()
    done = CliRunner().invoke(report, ["1"], obj=settings, catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "the report of experiment 1 is in report-1.html\n")
    assert (tmp_path / "report-1.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("values", [(0.101809, 0.976642), (-1.23457e-05, -1.23451e-05)])
def test_no_label_of_the_curves_begins_outside_the_picture(values: tuple[float, float]) -> None:
    """A character of 12 pixels' height is less than 7.5 pixels wide in a font for screens."""
    page = _curves("accuracy", [(1, [10, 20], list(values))])
    labels = re.findall(r'<text x="(\d+)"[^>]*text-anchor="end">([^<]+)<', page)
    assert len(labels) == 3
    assert all(int(x) >= 7.5 * len(text) for x, text in labels)
