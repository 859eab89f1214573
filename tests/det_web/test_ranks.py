"""The logs of a trial of several ranks: each is chosen, read, searched and followed by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import environment, install_fakes, start, stop, wait_for
from tests.repo.browser import CHROMIUM

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

MODEL = """
import os
import time
from det_testing.fakes import OwnedOneVar

RANK = os.environ["DET_RANK"]

class Model(OwnedOneVar):
    def build_data(self):
        print(f"hello from rank {RANK}", flush=True)
        return Waiting(super().build_data())

class Waiting:
    def __init__(self, data):
        self.data = data
    def __getattr__(self, name):
        return getattr(self.data, name)
    def records(self, batch):
        while batch == 1 and os.path.exists("PLACE/wait"):
            time.sleep(0.05)
        return self.data.records(batch)
"""
CONFIG = """
name: ranks
entrypoint: model_def:Model
hyperparameters: {lr: 0.01}
resources: {slots_per_trial: 2}
searcher: {name: single, metric: val_loss, max_length: 4}
check_first: false  # which would wait in the second batch, too
"""


@pytest.fixture
def home(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home in which a trial of two ranks trains, and waits before its second batch."""
    install_fakes(tmp_path, monkeypatch)
    project = tmp_path / "project"
    project.mkdir()
    (project / "model_def.py").write_text(MODEL.replace("PLACE", str(tmp_path)))
    (project / "const.yaml").write_text(CONFIG)
    (tmp_path / "wait").touch()
    command = [sys.executable, "-m", "det_driver.cli", "run", "const.yaml", "-q"]
    home = tmp_path / "home"
    driver = subprocess.Popen(command, cwd=project, env=environment(home))
    logs = [log_of(home, rank) for rank in (0, 1)]
    try:
        wait_for(
            lambda: all(log.exists() and "hello" in log.read_text() for log in logs),
            "two ranks that train",
        )
        yield home
        (tmp_path / "wait").unlink()
        assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.wait()


@pytest.fixture
def page(home: Path, tmp_path: Path) -> Iterator[Page]:
    server = start(home)
    with signed_in(server, tmp_path / "profile") as page:
        yield page
    stop(server)


def log_of(home: Path, rank: int) -> Path:
    return home / f"experiments/1/trials/1/run-1/rank-{rank}.log"


def choose(page: Page, label: str, value: str) -> None:
    page.tell(f"""{{
          let all = [...document.querySelectorAll('label.choice')];
          let field = all.find(l => l.textContent.startsWith({json.dumps(label)})).querySelector('select');
          field.value = {json.dumps(value)};
          field.dispatchEvent(new Event('change', {{bubbles: true}}));
        }}""")


SHOWN = "document.querySelector('.log').textContent"
HITS = "[...document.querySelectorAll('.hits li')].map(l => l.textContent)"
ENDED = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 8)(document.querySelector('.log'))"


def test_each_rank_log_is_selected_searched_and_followed(page: Page, home: Path) -> None:
    page.open("/t/1/logs", ".log pre")
    page.until(f"{SHOWN}.includes('hello from rank 0')")
    assert "from rank 1" not in page.tell(SHOWN)
    options = page.texts("label.choice:last-of-type option")
    assert [each.partition(" (")[0] for each in options] == ["0", "1"]
    assert all(each.endswith("B)") for each in options), "each with its size"

    choose(page, "rank", "1")
    page.until(f"location.search.includes('rank=1') && {SHOWN}.includes('hello from rank 1')")
    assert "from rank 0" not in page.tell(SHOWN)
    assert page.tell("document.querySelector('.log').ariaLabel") == "log of trial 1, rank 1"

    page.type("search the log", "from rank")
    page.until(f"{HITS}.length === 1 && location.search.includes('find=')")
    assert page.tell(HITS) == ["hello from rank 1"]

    for number in range(3):  # the other one's lines are neither shown nor found
        for rank in (0, 1):
            with log_of(home, rank).open("a") as log:
                log.write(f"line {number} from rank {rank}\n" * 60)
        page.until(f"{SHOWN}.includes('line {number} from rank 1') && {ENDED}")
        page.until(f"{HITS}.length === {1 + 60 * (number + 1)}")
    assert "from rank 0" not in page.tell(SHOWN)
    assert not any("rank 0" in hit for hit in page.tell(HITS))

    page.open(str(page.tell("location.pathname + location.search")), ".log pre")
    page.until(f"{SHOWN}.includes('hello from rank 1') && {HITS}.length === 181")
    choose(page, "rank", "0")
    page.until(f"{SHOWN}.includes('line 2 from rank 0') && {HITS}.length === 181")
    assert not any("rank 1" in hit for hit in page.tell(HITS))
    assert page.tell("problems") == []
