"""Which tests start processes or listen on sockets.

A guard finds those that do not say so.

A test says so with `@pytest.mark.process`, or by a fixture that uses the fixture `processes`.
`nox` leaves such tests to `nox -t full`.
"""

from __future__ import annotations

import multiprocessing.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest

STARTS = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"),
    *("socket.bind", "subprocess.Popen"),
}
"""Audit events of the interpreter: https://docs.python.org/3/library/audit_events.html."""
QUESTIONS = {"gcc", "git", "ld", "ldconfig", "lscpu", "nvidia-smi", "objdump", "uname"}
"""Programs that libraries ask about the machine; they answer and end."""


SUITE = {"test_hooks_import_no_framework"}
"""Tests of det_testing's suites that start a process.

Those of several ranks use the fixture `ranks`.
"""


class ProcessStarted(RuntimeError):
    """A test that is not marked started a process or listens on a socket."""


class Guard:
    """Refuses processes and listening sockets while a test runs that is not marked."""

    def __init__(self) -> None:
        self.is_closed = False
        self.found: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_closed or event not in STARTS or self._is_question(event, arguments):
            return
        started = f"{event}: {arguments!r:.200}"
        self.found.append(started)
        raise ProcessStarted(f"mark this test with `@pytest.mark.process`; it did {started}")

    def _is_question(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "socket.bind":
            address = arguments[1]
            if isinstance(address, str):
                # A driver only learns there that a slot is free. Nobody connects to it.
                return address.startswith("\0det-slots-")
            # urllib3 asks so, as it is imported, whether the machine has IPv6.
            return tuple(address[:2]) == ("::1", 0)
        if event != "subprocess.Popen":
            return False
        executable, argv = arguments[:2]
        first = executable or (argv if isinstance(argv, (str, bytes)) else argv[0])
        return str(first).rpartition("/")[2] in QUESTIONS


_guard = Guard()


def pytest_configure(config: pytest.Config) -> None:
    """Install the guard: an audit hook stays as long as the interpreter."""
    sys.addaudithook(_guard)
    # Processes of multiprocessing are started past the events of subprocess.
    spawn = multiprocessing.util.spawnv_passfds

    def audited(path: Any, arguments: Any, descriptors: Any) -> int:
        sys.audit("os.spawn", path, arguments)
        return spawn(path, arguments, descriptors)

    multiprocessing.util.spawnv_passfds = audited


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a fixture that starts processes, and those of det's suites that do."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "processes" in fixtures or _is_of_suite_with_processes(item):
            item.add_marker(pytest.mark.process)


def _is_of_suite_with_processes(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not item.function.__module__.startswith(
        "det_testing."
    ):
        return False
    return bool({"ranks", "strict_trial"} & set(item.fixturenames)) or item.originalname in SUITE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Close the guard for a test that is not marked, its fixtures included."""
    _guard.is_closed = item.get_closest_marker("process") is None
    try:
        return (yield)
    finally:
        _guard.is_closed = False


@pytest.fixture(autouse=True)
def _starts_no_process_unmarked() -> Iterator[None]:
    """Fail a test that swallowed the guard's error."""
    _guard.found.clear()
    yield
    assert not _guard.found, f"a test that is not marked as `process` did {_guard.found}"


@pytest.fixture(scope="session")
def processes() -> None:
    """Mark the tests whose fixtures use this one: they start processes or listen on sockets."""
