"""Signals that ask a run to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

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
