"""The check before training, in a process that is thrown away."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from det_core import InvalidHP, MetricError, Outcome
from det_node.first_check import CHECKING, Checked, Trained, check_apart

pytestmark = pytest.mark.process


HINT = " (in the check before training; `check_first: false` skips it)"


def apart(
    train: object,
    scratch: Path,
    preempted: bool = False,
    restore: Callable[[Path, Trained], list[str]] = lambda path, trained: [],
) -> Checked:
    return check_apart(train, restore, lambda: None, lambda: preempted, scratch)  # type: ignore[arg-type]


def test_what_a_check_does_stays_in_its_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state, seen = random.getstate(), [1]

    def check(scratch: Path) -> Trained:
        random.seed(3)
        seen.append(2)
        os.write(1, b"printed in a check that went well")
        scratch.joinpath("checkpoint").write_text("x")
        os.chdir(scratch)
        return Trained([os.environ[CHECKING]])

    assert apart(check, tmp_path) == Checked(notices=("1",))
    assert (random.getstate(), seen, list(tmp_path.iterdir())) == (state, [1], [])
    assert CHECKING not in os.environ
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (MetricError("no loss"), Outcome.MISTAKE, "no loss"),
        (InvalidHP("too large"), Outcome.INVALID_HP, "too large"),
        (ZeroDivisionError("nothing"), Outcome.ERROR, "ZeroDivisionError: nothing" + HINT),
        (ModuleNotFoundError("no such"), Outcome.ERROR, "ModuleNotFoundError: no such"),
        (FileNotFoundError("data.csv"), Outcome.ERROR, "FileNotFoundError: data.csv"),
    ],
)
def test_what_a_check_raises_is_what_the_run_would_have_said(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    outcome: Outcome,
    message: str,
) -> None:
    def check(scratch: Path) -> Trained:
        os.write(1, b"printed before it failed")
        raise error

    found = apart(check, tmp_path)
    assert (found.outcome, found.message) == (outcome, message)
    assert (type(error).__name__ in found.traceback) == (outcome is Outcome.ERROR)
    assert "printed before it failed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "was killed by SIGKILL: most often the machine or its container had no memory left",
        ),
        (
            lambda: os.kill(os.getpid(), signal.SIGSEGV),
            (
                "was killed by SIGSEGV: compiled code crashed; with PYTHONFAULTHANDLER=1 the log"
                " says where"
            ),
        ),
        (lambda: os._exit(3), "exited with status 3"),
        (
            lambda: os._exit(0),
            "ended before the trial was complete; return from its methods, and let det end it",
        ),
    ],
    ids=["SIGKILL", "SIGSEGV", "status 3", "status 0"],
)
def test_a_check_whose_process_ends_says_why_as_a_run_does(
    tmp_path: Path, end: Callable[[], None], how: str
) -> None:
    found = apart(lambda scratch: end(), tmp_path)
    assert (found.outcome, found.message) == (
        Outcome.ERROR,
        f"the process {how}{HINT}",
    )


def test_the_restored_trial_can_take_what_the_first_one_held(tmp_path: Path) -> None:
    """A port, a device and half of the memory belong to one process at a time."""
    port = listening().getsockname()[1]

    def train(scratch: Path) -> Trained:
        held.append(listening(port))
        scratch.joinpath("checkpoint").write_text("weights")
        return Trained(["first"], "checkpoint", 2, {}, {"a": "1"})

    def restore(scratch: Path, trained: Trained) -> list[str]:
        held.append(listening(port))
        return [scratch.joinpath(trained.checkpoint).read_text(), *trained.states]

    held: list[socket.socket] = []
    assert apart(train, tmp_path, restore=restore) == Checked(("first", "weights", "a"))
    assert held == []


def listening(port: int = 0) -> socket.socket:
    opened = socket.socket()
    opened.bind(("127.0.0.1", port))
    opened.listen()
    return opened


def test_failure_of_the_restore_is_that_of_the_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def restore(scratch: Path, trained: Trained) -> list[str]:
        os.write(1, b"printed while restoring")
        raise ValueError("no such layer")

    found = apart(lambda scratch: Trained(["first"], "x"), tmp_path, restore=restore)
    assert found[:3] == (("first",), Outcome.ERROR, "ValueError: no such layer" + HINT)
    assert "printed while restoring" in capfd.readouterr().err


def test_a_run_that_is_to_end_does_not_wait_for_its_check(tmp_path: Path) -> None:
    def check(scratch: Path) -> Trained:
        time.sleep(600)
        sys.exit(1)

    assert apart(check, tmp_path, preempted=True) == Checked()
