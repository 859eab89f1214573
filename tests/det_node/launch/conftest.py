"""`det launch` as a person uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.clusters.hosts import Network, joined, why_no_network

IMPATIENT = """
import sys
import det_node.launch._launch as launch
launch.SILENCE_SECONDS = float(sys.argv.pop(1))
from det_driver.cli._main import main
main(sys.argv[1:])
"""


class Launch:
    """Runs `det launch torch -np 2 -- python3 -c SCRIPT`.

    Nothing that it starts outlives the test.
    """

    def __init__(self, det) -> None:
        self.det = det

    def argv(self, script: str, *options: str, name: str = "torch", ranks: int = 2) -> list[str]:
        sized = [] if "--hosts" in options else ["-np", str(ranks)]
        return [
            "launch",
            name,
            *sized,
            *options,
            "--",
            sys.executable,
            "-c",
            textwrap.dedent(script),
        ]

    def __call__(
        self, script: str, *options: str, status: int | None = 0, **how
    ) -> subprocess.CompletedProcess[str]:
        return self.det(*self.argv(script, *options, **how), status=status)

    def start(self, script: str, *options: str, **how) -> subprocess.Popen[str]:
        return self.det.start(*self.argv(script, *options, **how))

    def impatient(
        self, lease: float, script: str, *options: str, inside: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start a launch with a short lease, by the command `inside` where one is given."""
        process = subprocess.Popen(
            [*inside, sys.executable, "-c", IMPATIENT, str(lease), *self.argv(script, *options)],
            cwd=self.det.cwd,
            env=self.det.env(None),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.det.started.append(process)
        return process


@pytest.fixture
def launch(det) -> Launch:
    return Launch(det)


@pytest.fixture
def ranks(det, wait_until) -> Callable[..., list[int]]:
    """Wait until each rank has written its process into `pid-RANK`, and return them."""

    def wait(size: int = 2) -> list[int]:
        files = [det.cwd / f"pid-{rank}" for rank in range(size)]
        wait_until(
            lambda: all(file.exists() and file.read_text() for file in files),
            "the start of the ranks",
        )
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


@dataclass
class Hosts:
    """Two hosts, whose names are their addresses, and how to run a command on one."""

    names: list[str]
    agent: str = "ip netns exec {host}"

    def options(self, *slots: int) -> list[str]:
        return [
            "--hosts",
            ",".join(f"{n}:{s}" for n, s in zip(self.names, slots, strict=True)),
            "--agent",
            self.agent,
        ]

    def processes(self) -> list[int]:
        found = []
        for name in self.names:
            listed = subprocess.run(
                ["ip", "netns", "pids", name],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            )
            found += [int(pid) for pid in listed.stdout.split()]
        return found


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two hosts that see each other."""
    if reason := why_no_network():
        pytest.skip(reason)
    with joined(2) as found:
        yield found


@pytest.fixture
def hosts(network) -> Iterator[Hosts]:
    found = Hosts(network.names)
    yield found
    deadline = time.monotonic() + 5
    while (left := found.processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
