"""The page of a trial that failed before it reported anything.

Why comes first, and nothing is promised any more.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.det_web.browsing import signed_in
from tests.det_web.conftest import CONFIG, start, stop
from tests.repo.browser import CHROMIUM

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import ExperimentState, Store
from det_web.report import make_report

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    labels["cat"]
KeyError: 'cat <b>'
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose one trial failed on its second rank; the first was killed for it."""
    home = tmp_path / "home"
    with Store(home) as store:
        config = to_json(load(CONFIG).config)
        id = store.experiments.create(
            name="odd", config=config, metric="error", entrypoint="python3 train.py"
        ).id
        with store.lock(id):
            store.code_dir(id).mkdir()
            trial = store.trials.create(id, 0, {"lr": 0.1}, 0)
            run = store.runs.begin(trial.id)
            run.log_dir.mkdir(parents=True)
            (run.log_dir / "rank-0.log").write_text("begins\nwaits for rank 1\n")
            (run.log_dir / "rank-1.log").write_text("x" * 200_000 + f"\nbegins\n{TRACEBACK}")
            store.runs.end(run.id, "ERROR", "KeyError: 'cat <b>'")
            store.trials.update(
                trial.id, state="ERROR", exit_reason="KeyError: 'cat <b>'", ended=2.0
            )
            store.experiments.update(
                id, state=ExperimentState.ERROR, reason="trial 1: KeyError", started=1.0, ended=2.0
            )
    return home


@pytest.mark.process
def test_a_trial_that_failed_is_answered_with_its_traceback(home: Path) -> None:
    server = start(home)
    try:
        told = server.get("/trials/1")
    finally:
        stop(server)
    assert told["why"] == "KeyError: 'cat <b>'"
    assert told["failure"] == {"run": 1, "rank": 1, "text": TRACEBACK.rstrip("\n")}


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_failed_trial_page_starts_with_reason_and_traceback(home: Path, tmp_path: Path) -> None:
    server = start(home)
    try:
        with signed_in(server, tmp_path / "profile") as page:
            page.open("/", "main .rows .failed")
            assert page.text("main .rows td .failed") == "trial 1: KeyError"
            assert not page.tell("!!document.querySelector('.rows progress')")
            page.open("/", "main .rows .failed", 390)
            assert page.texts("thead th")[1:4] == ["id ↓", "name", "best"]
            page.open("/t/1/metrics", "pre.failure")
            assert page.tell(
                "document.querySelector('pre.failure').textContent"
            ) == TRACEBACK.rstrip("\n")
            page.until(
                "document.querySelector('main').innerText.includes('It ended without a checkpoint')"
            )
            text = page.tell("document.querySelector('main').innerText")
            assert (
                text.index("KeyError: 'cat <b>'")
                < text.index("Traceback")
                < text.index("Hyperparameters")
            ), text
            assert " yet" not in text, json.dumps(text)
            link = page.tell(
                'document.querySelector(\'section[aria-label="What run 1 wrote last"]'
                " a').getAttribute('href')"
            )
            assert link == "/t/1/logs?run=1&rank=1"
            for view in ("/compare?t=1", "/e/1/trials", "/e/1/logs", "/e/1/checkpoints"):
                page.open(view, "main .empty, main table, .log pre")
                page.until("!document.querySelector('[aria-busy]')")
                assert " yet" not in page.text("main"), view
    finally:
        stop(server)


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_long_word_in_a_reason_does_not_widen_a_phones_page(home: Path, tmp_path: Path) -> None:
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with Store(home) as store, store.lock(1):
        store.experiments.update(1, reason=f"trial 1: {'y' * 200}")
    (tmp_path / "report.html").write_text(make_report(home, 1))
    server = start(home)
    try:
        with signed_in(server, tmp_path / "profile") as page:
            page.open("/e/1/logs", "p.why", 390)
            assert page.tell(sideways) <= 0
            page.browser.open((tmp_path / "report.html").as_uri(), 390)
            assert page.tell(sideways) <= 0
    finally:
        stop(server)
