"""The check before training, in a process that is thrown away."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from det_core import InvalidHP, MetricError, Outcome
from det_node.first_check import CHECKING, Checked, check_apart

pytestmark = pytest.mark.process


def apart(check: object, scratch: Path, preempted: bool = False) -> Checked:
    return check_apart(check, lambda: None, lambda: preempted, scratch)  # type: ignore[arg-type]


def test_what_a_check_does_stays_in_its_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state, seen = random.getstate(), [1]

    def check(scratch: Path) -> list[str]:
        random.seed(3)
        seen.append(2)
        os.write(1, b"printed in a check that went well")
        scratch.joinpath("checkpoint").write_text("x")
        os.chdir(scratch)
        return [os.environ[CHECKING]]

    assert apart(check, tmp_path) == Checked(notices=("1",))
    assert (random.getstate(), seen, list(tmp_path.iterdir())) == (state, [1], [])
    assert CHECKING not in os.environ
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (MetricError("no loss"), Outcome.MISTAKE, "no loss"),
        (InvalidHP("too large"), Outcome.INVALID_HP, "too large"),
        (ZeroDivisionError("nothing"), Outcome.ERROR, "ZeroDivisionError: nothing"),
    ],
)
def test_what_a_check_raises_is_what_the_run_would_have_said(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    outcome: Outcome,
    message: str,
) -> None:
    def check(scratch: Path) -> list[str]:
        os.write(1, b"printed before it failed")
        raise error

    found = apart(check, tmp_path)
    assert (found.outcome, found.message) == (outcome, message)
    assert ("ZeroDivisionError" in found.traceback) == (outcome is Outcome.ERROR)
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
        f"in the check before training the process {how}",
    )


def test_a_run_that_is_to_end_does_not_wait_for_its_check(tmp_path: Path) -> None:
    def check(scratch: Path) -> list[str]:
        time.sleep(600)
        sys.exit(1)

    assert apart(check, tmp_path, preempted=True) == Checked()
