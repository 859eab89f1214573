"""Makes the pictures of docs/guides/page.md and docs/guides/server.md anew, from real runs.

python -m tests.det_web.screenshots, or nox -s screenshots. With the word `team`, it makes those of a
server only.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.det_server.test_remote import Running
from tests.det_server.walk import fill_team, walk
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import Server, det, start, stop
from tests.repo.browser import Browser

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "guides" / "images"
MOST_BYTES, MOST_TOGETHER = 100_000, 700_000
DRAWN = "document.querySelector('{} canvas')?.dataset.drawn >= 1"
ROWS = "!!document.querySelector('.rows tbody a')"


class View(NamedTuple):
    """What is shown at a width in pixels, and the expression that is true when it is there."""

    path: str
    there: str
    width: int = 1100
    dark: bool = False


VIEWS = {
    "list": View("/?cols=id,name,state,progress,trials,best,metric,searcher,labels", ROWS),
    "wide": View("/", ROWS, 1400),
    "experiment": View("/e/1/trials", f"{DRAWN.format('.parallel')} && {DRAWN.format('.scatter')}"),
    "logs": View("/e/{failing}/logs", "!!document.querySelector('.log pre')", 1024),
    "trial": View("/t/{best}/metrics", DRAWN.format(".plot")),
    "failed": View("/t/{failed}", "!!document.querySelector('pre')", 1024),
    "compare": View("/compare?t=1,2,3,4", DRAWN.format(".plot")),
    "dark": View(
        "/e/1/search",
        "!!document.querySelector('svg .bar') || !!document.querySelector('.plot canvas')",
        dark=True,
    ),
    "phone": View("/e/1/trials", DRAWN.format(".plot"), 390),
}
PICTURES = (*VIEWS, "report")
"""The pictures of the guide, in its order."""
SEARCHES = {"digits": ("adaptive_asha", 24, "[paper]"), "digits, at random": ("random", 8, "[]")}
CONFIG = """
name: "{name}"
labels: {labels}
description: "Digits: **which learning rate** does a small network want?"
entrypoint: model_def:DigitsTrial
hyperparameters:
  lr: {{type: log, minval: -4, maxval: 0}}
  momentum: {{type: double, minval: 0, maxval: 0.99}}
  hidden: {{type: int, minval: 8, maxval: 512}}
  dropout: {{type: double, minval: 0, maxval: 0.7}}
  global_batch_size: 64
  workers: 0
searcher: {{name: {searcher}, metric: accuracy, smaller_is_better: false, max_trials: {trials}, max_length: 160}}
min_validation_period: 10
scheduling_unit: 10
reproducibility: {{experiment_seed: 1}}
"""


FAILING = """
import numpy as np
from det_core import core

with core.init() as context:
    print("reading 1,200 records of 28 x 28 pixels")
    context.train.report_training_metrics(10, {"loss": 0.7})
    np.zeros(784).reshape(64, -1)
"""
OF_FAILING = """
name: "digits, my own data"
labels: []
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: 160}
"""


def make(page: Page, images: Path) -> list[str]:
    """Photograph each view of a home whose first experiment is a search; return their names.

    A home without a failed trial has no view of one.
    """
    best = page.server.get("/experiments/1")["best_trial"]
    failing, failed = _failed(page)
    made = []
    for name, view in VIEWS.items():
        if failed is None and name == "failed":
            continue
        path = view.path.format(best=best, failing=failing, failed=failed)
        page.open(path, "main :is(a, button)", view.width)
        page.until(view.there)
        if view.dark:
            page.press("d")
            page.until("document.documentElement.dataset.theme === 'dark'")
        page.until("!document.querySelector('[aria-busy]')")
        # It names a machine.
        page.tell("document.querySelector('nav .home').style.visibility = 'hidden'")
        photograph(page, images / f"{name}.webp")
        if view.dark:
            page.press("d")
        made.append(name)
    return made


def photograph(page: Page, file: Path) -> None:
    page.tell("new Promise(done => requestAnimationFrame(() => setTimeout(done, 400)))")
    page.browser.photograph(file)


def make_team(place: Path, images: Path) -> None:
    """Photograph the pages of a server on a walk through them."""
    home = place / "team"
    fill_team(home)
    running = Running(home)
    try:
        with Browser(place / "team-profile") as browser:
            page = Page(browser, Server(home, running.process, running.port, ""))

            def show(name: str) -> None:
                page.until("!document.querySelector('[aria-busy]')")
                page.tell("document.querySelector('nav .home')?.remove()")
                photograph(page, images / f"{name}.webp")

            walk(page, home, show)
    finally:
        running.kill()


def _failed(page: Page) -> tuple[int, int | None]:
    """Return an experiment that has failed and its trial, or the first experiment and None."""
    columns = page.server.get("/experiments")["columns"]
    states = zip(columns["id"], columns["state"], strict=True)
    failed = [number for number, state in states if state == "ERROR"]
    if not failed:
        return 1, None
    return failed[0], page.server.get(f"/experiments/{failed[0]}/trials")["columns"]["id"][0]


def main(chosen: str = "") -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        make_team(place, IMAGES)
        if chosen != "team":
            _make_page(place)
    sizes = {file.stem: file.stat().st_size for file in sorted(IMAGES.iterdir())}
    sys.stdout.write(f"{sizes}\n")


def _make_page(place: Path) -> None:
    """Make the pictures of the guide to the page."""
    home, file, code = place / "home", place / "search.yaml", place / "code"
    for name, (searcher, trials, labels) in SEARCHES.items():
        file.write_text(CONFIG.format(name=name, searcher=searcher, trials=trials, labels=labels))
        example = str(ROOT / "examples" / "digits_torch")
        done = det(home, place, "run", str(file), example, "-q")
        assert done.returncode == 0, done.stderr
    code.mkdir()
    (code / "train.py").write_text(FAILING)
    file.write_text(OF_FAILING)
    assert det(home, place, "run", str(file), str(code), "-q").returncode == 1
    report = place / "report.html"
    assert det(home, place, "report", "1", "--html", str(report)).returncode == 0
    server = start(home)
    try:
        with signed_in(server, place / "profile") as page:
            make(page, IMAGES)
            page.browser.open(report.as_uri(), 1100)
            photograph(page, IMAGES / "report.webp")
    finally:
        stop(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
