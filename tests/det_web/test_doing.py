"""What is done from the page to experiments that have ended.

Described, forked, gone on with, deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import start, stop
from tests.repo.browser import CHROMIUM

from det_driver.client import Client

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)


@pytest.fixture
def page(made: Path, tmp_path: Path) -> Iterator[Page]:
    """A page on a home of its own, in which is one finished search."""
    shutil.copytree(made, tmp_path / "home", symlinks=True)
    server = start(tmp_path / "home")
    with signed_in(server, tmp_path / "profile") as page:
        yield page
    stop(server)


def test_labels_and_note_are_saved_and_the_note_shows_no_html(page: Page) -> None:
    page.open("/e/1/trials", ".note")
    page.click("Label")
    page.type("labels, separated by commas", "paper, two words, paper")
    page.click("Save")
    page.until(
        "[...document.querySelectorAll('.label')].map(l => l.textContent).join() === 'paper,two"
        " words'"
    )
    page.click("Edit")
    page.type(
        "note, in Markdown",
        "# Seen\n*well* <img src=x onerror=alert(1)> [link](javascript:alert(1))",
    )
    page.click("Save")
    page.until("document.querySelector('.note em')?.textContent === 'well'")
    page.until("!document.querySelector('.edited')")
    assert (
        page.tell("document.querySelectorAll('.note img, .note a[href^=javascript]').length") == 0
    )
    one = Client(page.server.home).get_experiment(1)
    assert (list(one.labels), one.description[:6]) == (["paper", "two words"], "# Seen")


def test_edited_fork_starts_and_is_opened(page: Page) -> None:
    page.open("/e/1/trials", ".note")
    page.click("Fork")
    source = str(page.until("document.querySelector('dialog textarea')?.value"))
    page.type("configuration", source.replace("name: small", "name: forked", 1))
    page.click("Start")
    page.until(
        "location.pathname === '/e/2/trials' &&"
        " document.querySelector('h1')?.textContent.includes('forked')"
    )
    page.until("document.querySelector('main header')?.innerText.includes('completed')")
    assert Client(page.server.home).get_experiment(2).name == "forked"


def test_a_trial_is_continued_in_an_experiment_of_its_own(page: Page) -> None:
    best = page.server.get("/experiments/1")["best_trial"]
    page.open(f"/t/{best}/metrics", ".columns table")
    page.click("Continue")
    page.until("location.pathname === '/e/2/trials'")
    made = Client(page.server.home).get_experiment(2)
    assert made.name == f"small (trial {best})"
    made.wait()


def test_experiment_is_deleted_after_a_confirmation(page: Page) -> None:
    """The page then shows that no experiment is left."""
    page.open("/latest", ".note")
    page.click("Delete")
    page.click("Delete it")
    page.until(
        "location.pathname === '/' && document.querySelector('main')?.textContent.includes('No"
        " experiment is in this home yet')"
    )
    assert not (page.server.home / "experiments" / "1").exists()
