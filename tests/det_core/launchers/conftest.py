"""`det launch` as a person uses it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest


class Launch:
    """Runs `det launch torch -np 2 -- python3 -c SCRIPT`; nothing that it starts outlives the test."""

    def __init__(self, det) -> None:
        self.det = det

    def argv(self, script: str, *options: str, name: str = "torch", ranks: int = 2) -> list[str]:
        sized = [] if "--hosts" in options else ["-np", str(ranks)]
        return ["launch", name, *sized, *options, "--", sys.executable, "-c", textwrap.dedent(script)]

    def __call__(self, script: str, *options: str, status: int | None = 0, **how) -> subprocess.CompletedProcess[str]:
        return self.det(*self.argv(script, *options, **how), status=status)

    def start(self, script: str, *options: str, **how) -> subprocess.Popen[str]:
        return self.det.start(*self.argv(script, *options, **how))


@pytest.fixture
def launch(det) -> Launch:
    return Launch(det)


@pytest.fixture
def ranks(det, wait_until) -> Callable[..., list[int]]:
    """Wait until each rank has written its process into `pid-RANK`, and return them."""

    def wait(size: int = 2) -> list[int]:
        files = [det.cwd / f"pid-{rank}" for rank in range(size)]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), "the start of the ranks")
        return [int(file.read_text()) for file in files]

    return wait


NOTE = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
with open(f"pid-{rank}", "w") as file:
    file.write(str(os.getpid()))
"""


@pytest.fixture
def note() -> str:
    """The beginning of a script whose ranks write down their processes."""
    return NOTE


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def all_gone(wait_until) -> Callable[[list[int]], float]:
    """Wait until processes are gone, at most ten seconds; return how long it took."""

    def wait(pids: list[int]) -> float:
        began = time.monotonic()
        wait_until(lambda: all(gone(pid) for pid in pids), "the end of the ranks", seconds=10)
        return time.monotonic() - began

    return wait
