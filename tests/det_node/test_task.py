"""How a task ends its command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from det_node.task import STATUS, find_kind, task_words

pytestmark = pytest.mark.process


def run(tmp_path: Path, *command: str, **limits: float) -> tuple[int, str]:
    """Run a command as a run of an agent would, and return its status and its log."""
    words = task_words("command", command, directory=tmp_path, **limits)
    log = tmp_path / "log"
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, *words[1:]],
            stdout=output,
            stderr=output,
            env={"DET_SCRATCH_DIR": str(tmp_path / "scratch"), "PATH": "/usr/bin:/bin"},
            timeout=60,
            check=False,
        )
    assert int((tmp_path / STATUS).read_text()) == done.returncode or done.returncode == 1
    return int((tmp_path / STATUS).read_text()), log.read_text()


def test_the_status_of_a_command_is_kept(tmp_path):
    assert run(tmp_path, "sh", "-c", "exit 7") == (7, "")
    # SIGTERM from elsewhere, which is no preemption.
    assert run(tmp_path, "sh", "-c", "kill $$")[0] == 143


def test_a_command_that_cannot_start_says_why(tmp_path):
    status, log = run(tmp_path, "no-such-program")
    assert (status, log) == (
        127,
        "det: the command cannot be started: No such file or directory: no-such-program\n",
    )
    tmp_path.joinpath("data").touch()
    assert run(tmp_path, "./data")[0] == 126


def test_the_time_limit_ends_a_busy_command(tmp_path):
    status, log = run(tmp_path, "sh", "-c", "while :; do echo busy; done", max_seconds=1)
    assert status == 124
    assert "det: the command is ended: it ran for 1 seconds, which is its limit" in log


def test_only_an_idle_command_is_ended(tmp_path):
    busy = "import time; end = time.time() + 4\nwhile time.time() < end: pass"
    assert run(tmp_path, sys.executable, "-c", busy, idle_seconds=3) == (0, "")
    writes = "for i in 1 2 3 4 5 6; do echo $i; sleep 1; done"
    assert run(tmp_path, "sh", "-c", writes, idle_seconds=5) == (0, "1\n2\n3\n4\n5\n6\n")
    status, log = run(tmp_path, "sleep", "600", idle_seconds=2)
    assert (status, log) == (
        124,
        "det: the command is ended: it was idle for 2 seconds, which is its limit\n",
    )


def test_only_a_task_has_a_kind():
    words = task_words("shell", ["python3", "-P"], directory=Path("/"), max_seconds=3600.0)
    assert find_kind(" ".join(words)) == "shell"
    assert [find_kind(each) for each in ("", "module:Trial", "python3 -P -m train a")] == [""] * 3
