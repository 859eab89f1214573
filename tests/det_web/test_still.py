"""Nothing that one looks at moves while a search goes on.

Rows, curves, charts and runs come to what is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import environment, start, stop, wait_for
from tests.repo.browser import CHROMIUM

from det_driver.client import Client

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

# A trial takes a step whenever the test says so, by the number in a file.
SCRIPT = """
import time
from pathlib import Path
from det_core import core

def wait(number):
    while int(Path("PLACE/step").read_text() or 0) < number:
        time.sleep(0.02)

with core.init() as context:
    trial, lr = context.info.trial.trial_id, context.info.trial.hparams["lr"]
    for operation in context.searcher.operations():
        for batch in range(1, operation.length + 1):
            wait((trial - 1) * operation.length + batch)
            more = {f"extra {k}": lr for k in range(2 * (batch - 1))}
            context.train.report_training_metrics(batch, {"loss": lr / batch, **more})
            context.train.report_validation_metrics(batch, {"error": lr / batch})
        operation.report_completed(lr / batch)
"""
CONFIG = """
name: still
entrypoint: python3 train.py
hyperparameters:
  lr: {type: log, minval: -3, maxval: -1}
  width: {type: int, minval: 1, maxval: 9}
searcher: {name: random, metric: error, max_trials: TRIALS, max_length: 3, max_concurrent_trials: 1}
max_restarts: 3
"""
TRIALS = 14
"""More than the twelve that a legend names one by one."""

OBSERVED = """
window.shifts = [];
new PerformanceObserver(list => {
  for (let entry of list.getEntries())
    shifts.push([entry.value, entry.sources.map(s => s.node?.outerHTML?.slice(0, 120) ?? s.node?.textContent)]);
}).observe({type: 'layout-shift', buffered: true});
let at = e => { let {left, top, height} = e.getBoundingClientRect(); return [left, top, height].map(Math.round); };
window.remember = chosen => new Promise(done => setTimeout(() => {
  let seen = [...document.querySelectorAll(chosen)].filter(e => e.checkVisibility());
  window.remembered = seen.map(e => [e, at(e)]);
  shifts.length = 0;
  done(seen.length);
}, 300));
window.moved = () => remembered.filter(([e, was]) => !e.isConnected || String(at(e)) !== String(was))
  .map(([e, was]) => [e.outerHTML.slice(0, 120), was, at(e)]);
"""
MOST_SHIFTED = 0.01
"""Of the view, by its distance: the sum that a browser gives for a whole visit.

Up to 0.1 counts as good.
"""


class Stepping:
    """A search whose trials take a step when they are told to."""

    def __init__(self, place: Path) -> None:
        self.place, self.home, self.number = place, place / "home", 0
        project = place / "project"
        project.mkdir()
        (project / "train.py").write_text(SCRIPT.replace("PLACE", str(place)))
        (project / "const.yaml").write_text(CONFIG.replace("TRIALS", str(TRIALS)))
        self.to(0)
        command = [sys.executable, "-m", "det_driver.cli", "run", "const.yaml", "-q"]
        self.driver = subprocess.Popen(command, cwd=project, env=environment(self.home))
        self.notes = "experiments/1/trials/{}/run-*/process.json"
        wait_for(lambda: [*self.home.glob(self.notes.format(1))], "runs of the first trial")

    def to(self, number: int) -> None:
        self.number = number
        new = self.place / "step.new"
        new.write_text(str(number))
        new.rename(self.place / "step")

    def kill(self, trial: int) -> None:
        note = max(self.home.glob(self.notes.format(trial)))
        os.killpg(json.loads(note.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def search(processes: None, tmp_path: Path) -> Iterator[Stepping]:
    search = Stepping(tmp_path)
    yield search
    search.to(3 * (TRIALS + 1))  # an experiment that was forked has taken a trial's number
    try:
        search.driver.wait(60)
    finally:
        search.driver.kill()
        search.driver.wait()


@pytest.fixture
def page(search: Stepping, tmp_path: Path) -> Iterator[Page]:
    server = start(search.home)
    with signed_in(server, tmp_path / "profile") as page:
        page.browser.before_scripts(OBSERVED)
        yield page
    stop(server)


def remember(page: Page, chosen: str) -> int:
    """Note where elements are, once all is drawn; return how many there are."""
    return int(page.tell(f"remember({json.dumps(chosen)})"))


def is_still(page: Page) -> None:
    """Nothing that was remembered has moved, and hardly anything of the rest.

    The browser itself measures it.
    """
    assert page.tell("moved()") == []
    shifted = page.tell("shifts")
    assert sum(value for value, _ in shifted) < MOST_SHIFTED, shifted


FRAME = "nav a, nav button, h1, h2, .tabs a, .actions button"


@pytest.mark.thorough
def test_experiment_page_keeps_its_layout_through_all_trials(page: Page, search: Stepping) -> None:
    page.open("/e/1/trials?sort=id")
    page.until(
        "document.body.innerText.includes('No trial has been validated yet') &&"
        " !!document.querySelector('.rows th')"
    )
    everything = (
        f"{FRAME}, figcaption b, canvas, .legend, .tools input, .tools button, .tools select,"
        " .rows, .rows th"
    )
    assert remember(page, everything) > 40
    drawn = "document.querySelector('.plot canvas').dataset.drawn"
    for trial in range(1, TRIALS):
        search.to(3 * trial)
        page.until(
            f"document.querySelectorAll('.rows tbody a').length === {trial + 1} && {drawn} ==="
            f" '{trial}'"
        )
        is_still(page)
    assert "14 trials" in page.text(".facts")


CHARTS = "nav a, nav button, h1, .tabs a, figure, figcaption b, .plot canvas, .legend"
"""Without what its end takes away, Kill, and the tables below, which grow."""
COUNT = "document.querySelectorAll('figure').length"


@pytest.mark.thorough
def test_charts_keep_their_places_as_more_come_behind_them(page: Page, search: Stepping) -> None:
    page.open("/t/1/metrics", "figure")
    for step, figures in ((1, 2), (2, 4), (3, 6)):
        remember(page, CHARTS)
        search.to(step)
        page.until(f"{COUNT} === {figures}")
        assert page.tell("moved()") == []
    assert page.texts("figcaption b") == ["error", "loss", *(f"extra {k}" for k in range(4))]


@pytest.mark.thorough
def test_a_trial_that_is_started_again_moves_nothing(page: Page, search: Stepping) -> None:
    search.to(4)
    page.open("/t/2/metrics", "figure")
    page.until(
        f"{COUNT} === 2 && [...document.querySelectorAll('figure canvas')].every(c =>"
        " c.dataset.drawn >= 1)"
    )
    page.until("document.querySelectorAll('.legend .mark').length === 1")
    remember(page, f"{CHARTS}, .facts .state, .runs th")
    search.to(3)  # what it had trained is gone, and it reports nothing yet
    search.kill(2)
    page.until("document.querySelector('.runs').innerText.split('running').length === 2")
    page.until("document.querySelectorAll('.runs tbody tr').length === 2")
    is_still(page)
    search.to(4)
    page.until("document.querySelectorAll('.legend .event').length === 2")
    is_still(page)


@pytest.mark.thorough
def test_the_list_keeps_its_places_as_experiments_go_on_and_come(
    page: Page, search: Stepping
) -> None:
    page.open("/?sort=id")
    remember(
        page, f"{FRAME}, .tools input, .tools button, .rows, .rows th, .rows td:nth-child(-n + 3)"
    )
    for trial in range(1, 5):
        search.to(3 * trial)
        page.until(
            f"document.querySelector('.rows tbody').innerText.includes('{100 * trial // TRIALS} %')"
        )
        is_still(page)
    forked = page.server.ask(
        "/api/v1/experiments/1/fork", "POST", {"config": CONFIG.replace("TRIALS", "1")}
    )
    assert forked.status == 201, forked.body
    page.until("document.querySelectorAll('.rows tbody tr[aria-rowindex]').length === 2")
    is_still(page)
    search.to(3 * (TRIALS + 1))
    Client(search.home).get_experiment(2).wait()
