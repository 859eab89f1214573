"""What every test may use."""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = [
    "det_testing.plugin",
    "tests.support.processes",
    "tests.support.samples",
    "tests.support.results",
]

LIMIT_SECONDS = 240
READS = ("checkpoint list", "checkpoint show", "list", "logs", "metrics", "show")
"""Commands that read the home and end."""

# Restarts follow at once, and a storage that is away is not waited for, unless a test says
# otherwise.
os.environ.setdefault("DET_RESTART_SECONDS", "0")
os.environ.setdefault("DET_OUTAGE_SECONDS", "0")
# Scripts that tests run without det do not write to the home of whoever runs the tests.
os.environ.setdefault("DET_RECORD", "0")

# A machine may be busy, so no example has a deadline. The limit of the whole test holds.
settings.register_profile("no deadline", settings(), deadline=None)
settings.load_profile("no deadline")

# A shell that starts something in the background has it ignore SIGINT, and so would every process
# that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WORKER_BYTES = 16 * 2**30
"""Address space of a process that runs tests beside another.

A test that takes more gets a MemoryError, and fails by its name. Without a limit the kernel kills
the process, or another one, and nobody knows which test it was.
"""
if "PYTEST_XDIST_WORKER" in os.environ:
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(
        resource.RLIMIT_AS,
        (WORKER_BYTES if most == resource.RLIM_INFINITY else min(WORKER_BYTES, most), most),
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills",
        type=int,
        default=2,
        help="how often campaigns kill what they test (nox -s chaos: 20)",
    )
    parser.addoption(
        "--record", action="store_true", help="write the recorded sessions of terminals anew"
    )
    parser.addoption(
        "--examples-times",
        type=float,
        default=1,
        help="how many times as many examples properties try",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let a campaign try more examples than each property test asks for, or fewer."""
    times = config.getoption("--examples-times")
    for item in items:
        test = getattr(item, "obj", None)
        # Hypothesis keeps the settings of a test there; it has no public way to scale what a test
        # sets itself.
        before = getattr(test, "_hypothesis_internal_use_settings", None)
        if times != 1 and before is not None:
            many = settings(before, max_examples=max(1, int(before.max_examples * times)))
            test._hypothesis_internal_use_settings = many  # type: ignore[union-attr]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what collection made out of garbage collection: it is not looked at again and again."""
    gc.collect()
    gc.freeze()


@dataclass
class Det:
    """The command `det` with a home of its own, run as a person runs it: in a process."""

    home: Path
    cwd: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __call__(
        self, *arguments: str | Path, status: int | None = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; check its exit status unless `status` is None.

        A command that reads the home runs in the process of the test, as tests wait by asking it
        again and again.
        """
        words = [str(word) for word in arguments]
        if env is None and reads(words):
            done = self._read(words)
        else:
            done = subprocess.run(
                self.argv(arguments),
                cwd=self.cwd,
                env=self.env(env),
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        if status is not None:
            assert done.returncode == status, (
                f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def _read(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        from det_driver.cli import main

        before = dict(os.environ)
        written = [io.BytesIO(), io.BytesIO()]
        streams = [io.TextIOWrapper(each, encoding="utf-8") for each in written]
        status: Any = 0
        try:
            os.environ.clear()
            os.environ.update(self.env(None))
            with chdir(self.cwd), redirect_stdout(streams[0]), redirect_stderr(streams[1]):
                main(words)
        except SystemExit as ended:
            status = ended.code
        finally:
            os.environ.clear()
            os.environ.update(before)
        for stream in streams:
            stream.flush()
        out, err = (each.getvalue().decode() for each in written)
        return subprocess.CompletedProcess(["det", *words], status, out, err)

    def json(self, *arguments: str | Path, status: int | None = 0) -> Any:
        """Run a command with --json and return what it printed.

        One value, or a list of a value for each line.

        Of the events of an experiment that is driven it is the last, the result.
        """
        lines = self(*arguments, "--json", status=status).stdout.splitlines()
        values = [json.loads(line) for line in lines]
        return values[-1] if len(values) == 1 or (values and "event" in values[-1]) else values

    def start(
        self, *arguments: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command and return its process, which is ended with the test."""
        process = subprocess.Popen(
            self.argv(arguments),
            cwd=self.cwd,
            env=self.env(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def metrics(self, experiment: int, group: str | None = None) -> list[dict[str, Any]]:
        """Return the reports of an experiment, in order, with the metrics among the other keys."""
        arguments = ["metrics", str(experiment), "--json", *(["--group", group] if group else [])]
        rows = [json.loads(line) for line in self(*arguments).stdout.splitlines()]
        return [row | row.pop("metrics") for row in rows]

    def argv(self, arguments: Sequence[str | Path]) -> list[str]:
        return [sys.executable, "-m", "det_driver.cli", *map(str, arguments)]

    def env(self, more: dict[str, str] | None) -> dict[str, str]:
        """Return the environment of a command.

        What a killed driver leaves saves at once, unless the test says otherwise.
        """
        own = {"DET_HOME": str(self.home), "DET_STRICT_PLUGINS": "1", "DET_LEASE": "0"}
        return {**os.environ, **own, **(more or {})}


@pytest.fixture
def det(processes: None, tmp_path: Path) -> Iterator[Det]:
    """`det` in an empty home, in an empty directory; nothing that it starts outlives the test."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    command = Det(tmp_path / "home", cwd)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    left = leftovers(command.home)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def reads(words: Sequence[str]) -> bool:
    """Return whether a command reads the home and ends."""
    command = any(" ".join(words).startswith(each) for each in READS)
    return command and not {"-f", "--follow"} & {*words}


def leftovers(home: Path, patience: float = 15.0) -> list[int]:
    """Return the processes whose environment names `home`, after giving them time to end."""
    deadline = time.monotonic() + patience
    while (found := _processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _processes_of(home: Path) -> list[int]:
    marker = f"DET_HOME={home}".encode() + b"\0"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition, or fail saying which."""

    def wait(
        condition: Callable[[], bool], what: str = "the condition", seconds: float = 60.0
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true in {seconds} s"
            time.sleep(0.05)

    return wait
