"""The page beside drivers that run.

What becomes of an experiment is seen as it becomes, and what one presses is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import CONFIG, SCRIPT, environment, start, stop
from tests.repo.browser import CHROMIUM

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]


class Running:
    """A search that waits, when it has validated, for as long as a file is there.

    Its driver is ended with the test.
    """

    def __init__(self, place: Path) -> None:
        self.home, self.project, self.wait_for = place / "home", place / "project", place / "wait"
        self.project.mkdir()
        (self.project / "train.py").write_text(SCRIPT)
        (self.project / "const.yaml").write_text(CONFIG)
        self.wait_for.touch()
        self.env = {**environment(self.home), "WAIT_FOR": str(self.wait_for)}
        command = [sys.executable, "-m", "det_driver.cli", "run", "const.yaml", "-q"]
        self.driver = subprocess.Popen(command, cwd=self.project, env=self.env)
        deadline = time.monotonic() + 60
        while not list(self.home.glob("experiments/1/trials/1/run-1/process.json")):
            assert time.monotonic() < deadline, "no trial has started"
            time.sleep(0.05)

    def kill(self, trial: int) -> None:
        """SIGKILL the process of a trial's newest run, and all that it has started."""
        note = max(self.home.glob(f"experiments/1/trials/{trial}/run-*/process.json"))
        os.killpg(json.loads(note.read_text())["pid"], signal.SIGKILL)

    def go_on(self) -> None:
        self.wait_for.unlink(missing_ok=True)

    def end(self) -> None:
        self.go_on()
        subprocess.run(
            [sys.executable, "-m", "det_driver.cli", "kill", "1"],
            env=self.env,
            capture_output=True,
            check=False,
        )
        try:
            self.driver.wait(30)
        finally:
            self.driver.kill()


@pytest.fixture
def running(processes: None, tmp_path: Path) -> Iterator[Running]:
    search = Running(tmp_path)
    yield search
    search.end()


@pytest.fixture
def page(running: Running, tmp_path: Path) -> Iterator[Page]:
    os.environ["WAIT_FOR"] = str(
        running.wait_for
    )  # a driver that the page starts waits for it, too
    server = start(running.home)
    with signed_in(server, tmp_path / "profile") as page:
        yield page
    stop(server)
    del os.environ["WAIT_FOR"]


STATE = "document.querySelector('main header').innerText"


def test_killed_trial_shows_its_restart_on_the_open_page(page: Page, running: Running) -> None:
    page.open("/t/1/logs", ".log")
    page.until("document.querySelector('.log').textContent.includes('training with')")
    page.open("/t/1/metrics", ".columns table")
    runs = "[...document.querySelectorAll('.columns table')][1].innerText"
    page.until(f"{runs}.includes('running')")
    running.kill(1)
    page.until(f"{runs}.includes('killed by SIGKILL')")
    page.until(f"{runs}.split('running').length === 2 && {runs}.split('\\n').length > 2")
    legends = "[...document.querySelectorAll('.legend')].map(l => l.innerText).join()"
    page.until(f"/run 2 after .*: the process was killed by SIGKILL/.test({legends})")
    running.go_on()
    page.until(f"{STATE}.includes('completed')")
    for run in (
        "",
        "?run=1",
    ):  # the newest, and the one that was killed, by its number in the trial
        page.open(f"/t/1/logs{run}", ".log pre")
        page.until("document.querySelector('.log').textContent.includes('training with')")
        assert page.tell("problems") == []


def test_a_search_is_paused_and_goes_on_from_the_page(page: Page, running: Running) -> None:
    page.open("/e/1/trials", ".rows tbody a")
    page.click("Pause")
    page.until(f"{STATE}.includes('paused')")
    assert running.driver.wait(60) == 130  # as with det pause
    running.go_on()
    page.click("Activate")
    page.until(f"{STATE}.includes('completed')")
    assert len(page.trials()) == 4


def test_what_is_ended_at_once_is_asked_about_and_ended(page: Page, running: Running) -> None:
    page.open("/e/1/trials", ".rows tbody a")
    page.click("Kill")
    page.until(
        "document.querySelector('dialog')?.textContent.includes('since their last checkpoint is"
        " lost')"
    )
    assert running.driver.poll() is None
    page.click("Kill it")
    page.until(f"{STATE}.includes('canceled')")
    running.driver.wait(60)


def test_log_and_its_search_are_followed_while_it_grows(page: Page, running: Running) -> None:
    """A rank that prints and reports nothing changes nothing but its log."""
    page.open("/t/1/logs", ".log pre")
    page.until("document.querySelector('.log').textContent.includes('training with')")
    page.type("search the log", "late")
    log = running.home / "experiments/1/trials/1/run-1/rank-0.log"
    for number in range(3):
        with log.open("a") as file:
            file.write(f"a late line {number}\n" * 100)
        page.until(f"document.querySelector('.log').textContent.includes('a late line {number}')")
        page.until(
            "document.querySelector('.finder"
            f" .counted')?.textContent.startsWith('{100 * (number + 1)} lines')"
        )
        below = (
            "(e => e.scrollHeight - e.scrollTop - e.clientHeight)(document.querySelector('.log'))"
        )
        page.until(f"{below} < 8")
    assert (
        page.tell(
            "[...document.querySelectorAll('label.choice')].map(l => l.textContent.split('"
            " ')[0]).join()"
        )
        == "run,rank"
    )


def test_a_search_is_canceled_from_the_page(page: Page, running: Running) -> None:
    page.open("/e/1/trials", ".rows tbody a")
    page.click("Cancel")
    page.until(
        "document.querySelector('dialog')?.textContent.includes('save a checkpoint and stop')"
    )
    page.click("Cancel it")
    page.until(f"{STATE}.includes('canceled')")
    running.driver.wait(60)


def test_one_trial_is_killed_and_the_search_goes_on_without_it(
    page: Page, running: Running
) -> None:
    page.open("/t/1/metrics", ".columns table")
    page.click("Kill")
    page.until(
        "document.querySelector('dialog')?.textContent.includes('The search goes on without it')"
    )
    page.click("Kill it")
    page.until(f"{STATE}.includes('canceled')")
    running.go_on()
    page.open("/e/1/trials", ".rows tbody a")
    page.until(f"{STATE}.includes('completed')")
    page.until("document.querySelector('.rows tbody').innerText.split('canceled').length === 2")


def test_two_pages_of_one_home_show_the_same(page: Page, running: Running, tmp_path: Path) -> None:
    """Each `det ui` has its own server; what one changes, the other shows by itself."""
    other = start(running.home)
    try:
        with signed_in(other, tmp_path / "another") as second:
            second.open("/")
            page.open("/e/1/trials", ".rows tbody a")
            page.click("Rename")
            page.type("name", "seen by both")
            page.click("Save")
            second.until(
                "document.querySelector('.rows tbody').textContent.includes('seen by both')"
            )
            second.until("document.querySelector('.rows tbody').textContent.includes('active')")
            second.open("/e/1/trials", ".rows tbody a")
            second.click("Pause")
            page.until(f"{STATE}.includes('paused')")
    finally:
        stop(other)
