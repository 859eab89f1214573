"""The pages for a team in a browser: the queue, bulk actions, the registry and the usage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import start, stop
from tests.repo.browser import CHROMIUM

from det_driver.client import Client
from det_driver.store import Store

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]


@pytest.fixture
def page(made: Path, tmp_path: Path) -> Iterator[Page]:
    """A page on a home with one finished search, and an experiment that has not begun."""
    shutil.copytree(made, tmp_path / "home", symlinks=True)
    with Store(tmp_path / "home") as store:
        config = store.experiments.get(1).config
        store.experiments.create(name="second", config=config, metric="error", entrypoint="x")
    server = start(tmp_path / "home")
    with signed_in(server, tmp_path / "profile") as page:
        yield page
    stop(server)


def test_queue_is_changed_and_chosen_experiments_are_moved(page: Page) -> None:
    with Store(page.server.home) as store:
        held = store.slots.lease(2, 1, ("cpu:0",))
        assert held is not None
        page.open("/queue", "[aria-label='change experiment 2']", 390)
        page.click("Change")
        page.until("document.querySelector('[aria-label=priority]')?.value === '42'")
        page.type("priority", "7")
        page.click("Save")
        page.until("!document.querySelector('dialog')")
        assert page.server.get("/experiments/2/queue")["priority"] == 7
        store.slots.release(held)
    client = Client(page.server.home)
    client.get_experiment(1).set_labels(["old", "kept"])
    page.open("/?sort=id")
    for id in (1, 2):
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")
    page.click("Label or move")
    page.until("!!document.querySelector('[aria-label=\"take away old\"]')")
    page.tell("document.querySelector('[aria-label=\"take away old\"]').click()")
    page.type("labels to add, separated by commas", "new")
    page.click("Save")
    page.until("document.querySelector('main')?.innerText.includes('2 experiments labelled.')")
    assert list(client.get_experiment(1).labels) == ["kept", "new"]
    assert list(client.get_experiment(2).labels) == ["new"]
    # Of two that shall be deleted, the one that a driver holds is refused.
    for id in (1, 2):
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")
    with Store(page.server.home) as store, store.lock(2):
        page.click("Delete")
        page.click("Delete them")
        page.until("document.querySelector('main .error')?.textContent.startsWith('1 experiment')")
    assert "Experiment 2: " in page.text("main .error li")
    page.until("document.querySelector('[aria-label=\"choose 2\"]')?.checked")
    assert page.tell("window.problems") == []


def test_checkpoint_becomes_a_version_and_usage_is_saved(page: Page) -> None:
    best = page.server.get("/experiments/1")["best_trial"]
    page.open(f"/t/{best}/metrics", "[aria-label^='add checkpoint']")
    page.click("Add to a model")
    page.until("!!document.querySelector('datalist')")
    page.type("model: one that is there, or the name of a new one", "a model")
    page.type("aliases, such as production, separated by commas", "production")
    page.click("Add")
    page.until("location.pathname === '/models/a%20model' && !!document.querySelector('td .label')")
    assert "production" in page.text("td .label")
    version = Client(page.server.home).get_model("a model").get_version("production")
    assert version.checkpoint.uuid in page.tell("document.querySelector('td code').title")
    page.open("/usage", "main strong")
    assert page.texts("section h2")[-1] == "States of trials"
    assert page.tell("window.problems") == []
