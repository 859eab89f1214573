"""Ranks that are started together end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from det_node import group
from det_node.group import Command, Group, RankExit

pytestmark = pytest.mark.process

SLEEP = "import time; time.sleep(60)"


class Ranks:
    """A group of Python programs, and how they ended."""

    def __init__(self, programs: Sequence[str], tmp_path: Path, **times: float) -> None:
        self.exits: list[list[RankExit]] = []
        commands = [
            Command(argv=[sys.executable, "-c", text], env=dict(os.environ), cwd=tmp_path)
            for text in programs
        ]
        self.group = Group(commands, self.exits.append, **times)

    def wait(self, seconds: float = 20) -> list[RankExit]:
        assert self.group.join(seconds)
        [exits] = self.exits
        return exits


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_group_that_ends_well_says_so_once(tmp_path: Path) -> None:
    exits = Ranks(["pass", "pass"], tmp_path).wait()
    assert {(e.rank, e.status, e.killed) for e in exits} == {(0, 0, False), (1, 0, False)}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "GRACE_SECONDS", 0.2)


@pytest.mark.usefixtures("short")
def test_first_failure_is_first_and_others_end_after_the_grace(tmp_path: Path) -> None:
    ranks = Ranks([SLEEP, "raise SystemExit(3)"], tmp_path)
    assert ranks.wait() == [
        RankExit(rank=1, status=3),
        RankExit(rank=0, status=-signal.SIGKILL, killed=True),
    ]


def test_rank_that_exits_within_the_grace_is_not_killed(tmp_path: Path) -> None:
    ranks = Ranks(
        ["import time; time.sleep(0.5); raise SystemExit(4)", "raise SystemExit(3)"], tmp_path
    )
    assert ranks.wait() == [RankExit(rank=1, status=3), RankExit(rank=0, status=4)]


@pytest.mark.usefixtures("short")
def test_rank_killed_by_others_differs_from_one_the_group_ends(tmp_path: Path) -> None:
    ranks = Ranks([SLEEP, SLEEP], tmp_path)
    os.kill(ranks.group.pids[1], signal.SIGKILL)
    assert ranks.wait()[0] == RankExit(rank=1, status=-signal.SIGKILL, killed=False)


def test_ranks_left_after_a_success_end_after_the_patience(tmp_path: Path) -> None:
    ranks = Ranks([SLEEP, "pass"], tmp_path, patience=0.2)
    assert [e.killed for e in ranks.wait()] == [False, True]


def test_what_a_rank_started_ends_with_it(tmp_path: Path) -> None:
    started = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid,"
        " file=open('pid', 'w'))"
    )
    Ranks([started], tmp_path).wait()
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(child)


def test_a_signal_reaches_every_rank(tmp_path: Path) -> None:
    ranks = Ranks([SLEEP, SLEEP], tmp_path)
    ranks.group.signal(signal.SIGTERM)
    assert [(e.status, e.killed) for e in ranks.wait()] == [(-signal.SIGTERM, False)] * 2


def test_missing_command_ends_the_ranks_already_started(tmp_path: Path) -> None:
    good = Command(argv=[sys.executable, "-c", SLEEP], env=dict(os.environ))
    bad = Command(argv=[str(tmp_path / "nothing")], env={})
    before = children()
    with pytest.raises(FileNotFoundError):
        Group([good, bad], lambda exits: None)
    assert children() == before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_leashed_rank_dies_with_its_starter_and_others_do_not(tmp_path: Path) -> None:
    starter = f"""
import os, subprocess, sys, time
from det_node.group import Command, Group
argv = [sys.executable, "-c", {SLEEP!r}]
null = subprocess.DEVNULL
group = Group([Command(argv=argv, env=dict(os.environ), output=null, leash=n == 0) for n in range(2)], lambda exits: None)
print(*group.pids, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    leashed, free = map(int, process.stdout.readline().split())
    process.kill()
    process.communicate()
    try:
        deadline = time.monotonic() + 5
        while not gone(leashed) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert gone(leashed)
        assert not gone(free)
    finally:
        os.kill(free, signal.SIGKILL)
