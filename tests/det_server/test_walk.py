"""A person's way through the pages of a server, in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.det_server.test_remote import Running
from tests.det_server.walk import SHOWN, WATCH, fill_team, walk
from tests.det_web.browsing import Page
from tests.det_web.conftest import Server
from tests.repo.browser import CHROMIUM, Browser


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_a_team_works_on_the_pages_of_a_server(processes: object, tmp_path: Path) -> None:
    """From the first sign-in to the last sign-out, without an error or a refused request."""
    home, seen = tmp_path / "home", list[str]()
    fill_team(home)
    running = Running(home)
    try:
        with Browser(tmp_path / "profile") as browser:
            browser.before_scripts(WATCH)
            page = Page(browser, Server(home, running.process, running.port, ""))
            walk(page, home, seen.append)
    finally:
        running.kill()
    assert tuple(seen) == SHOWN
