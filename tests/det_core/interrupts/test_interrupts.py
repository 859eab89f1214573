"""Signals that ask a run to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core import Flag, preempted_by


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A shell starts what it runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_first_ctrl_c_sets_the_flag_and_the_second_interrupts():
    flag, heard = Flag(), []
    with preempted_by(flag, signal.SIGINT, on_signal=heard.append):
        signal.raise_signal(signal.SIGINT)
        assert (flag.raised, flag.reason, heard) == (True, "SIGINT", [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_may_come_twice():
    """Schedulers send it to a whole group, and again to each process."""
    flag = Flag()
    with preempted_by(flag, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert flag.reason == "SIGTERM"


def test_the_handlers_of_before_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with preempted_by(Flag(), signal.SIGTERM):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_is_caught():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def inside() -> None:
        with preempted_by(Flag(), signal.SIGTERM):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.process
def test_a_forked_process_ignores_ctrl_c_and_ends_by_sigterm():
    """Such as a data loader's worker, which its parent ends by SIGTERM when it hangs."""
    with preempted_by(Flag(), signal.SIGINT, signal.SIGTERM):
        pid = os.fork()
        if pid == 0:
            while True:
                time.sleep(10)
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_late_second_sigterm_acts_unless_the_first_was_heeded():
    """A second SIGTERM within the patience is ignored."""
    flag, heard = Flag(), []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with preempted_by(flag, signal.SIGTERM, patience=0.2):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.3)
            flag.heeded = True
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
            flag.heeded = False
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_that_a_script_sets_meanwhile_is_kept():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with preempted_by(Flag(), signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


PRINTS = """
import os, pathlib, signal, sys, time
from det_core import Flag, preempted_by

pathlib.Path("pid").write_text(str(os.getpid()))
flag = Flag()
with preempted_by(flag, signal.SIGTERM):
    while not flag.raised:
        time.sleep(0.01)
    for line in range(50):
        print("line", line, flush=True)
        print("error", line, file=sys.stderr, flush=True)
    pathlib.Path("saved").touch()
"""


# It dies of SIGTERM a second after it got it, as on a busy machine.
SLOW = """
import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
while signal.SIGTERM not in signal.sigpending():
    time.sleep(0.01)
time.sleep(1)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "pipe",
    ["| cat", "2>&1 | cat", "2>&1 | (trap '' TERM; cat)", "2>&1 | {python} slow.py"],
)
def test_script_saves_though_the_reader_of_its_output_dies_first(
    tmp_path: Path, wait_until: Any, pipe: str
) -> None:
    """All processes of a job get SIGTERM, and `tee` or `grep` dies of it.

    The session's first process has the log, as the guard of a script has it.
    """
    (tmp_path / "train.py").write_text(PRINTS)
    (tmp_path / "slow.py").write_text(SLOW)
    pipe = pipe.format(python=sys.executable)
    waits = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    script = f"({sys.executable} train.py {pipe}) & exec {sys.executable} -c '{waits}'"
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, start_new_session=True, stdout=log, stderr=log
        )
    try:
        pid = tmp_path / "pid"
        wait_until(lambda: pid.exists() and pid.read_text(), "the script")
        os.killpg(first.pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists(), "its end")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert (tmp_path / "saved").exists(), (tmp_path / "log").read_text()
    lines = (tmp_path / "log").read_text().splitlines()
    assert {"line 49", "error 49"} <= set(lines)


STREAMS = """
import os, signal, sys
from det_core import Flag, preempted_by
from det_core.train import interrupts

interrupts._READER_SECONDS = interrupts._DYING_SECONDS = 600.0
if sys.argv[1] == "broken":
    for fd in (1, 2):
        read, write = os.pipe()
        os.dup2(write, fd)
        os.close(read)
        os.close(write)
before = os.listdir("/proc/self/fd")
with preempted_by(Flag(), signal.SIGTERM):
    signal.raise_signal(signal.SIGTERM)
assert os.listdir("/proc/self/fd") == before
"""


@pytest.mark.process
@pytest.mark.parametrize("streams", ["files", "broken"])
def test_sigterm_waits_for_no_pipe_and_leaves_no_descriptor_open(
    tmp_path: Path, streams: str
) -> None:
    """Where the output goes to files, or where both readers are gone."""
    with (tmp_path / "out").open("w") as out:
        command = [sys.executable, "-c", STREAMS, streams]
        done = subprocess.run(command, stdout=out, stderr=out, timeout=60, check=False)
    assert (done.returncode, (tmp_path / "out").read_text()) == (0, "")
