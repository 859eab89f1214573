"""Shells on the slots of a home: a real pseudo-terminal, driver and agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.support.terminal import LIMIT_SECONDS, Terminal

SHELL = {"DET_SLOTS_TOTAL": "1", "SHELL": "/bin/sh", "PS1": "> ", "TERM": "xterm"}


def open_shell(det, *words: str) -> Terminal:
    """Return the terminal in which a person has called `det shell`."""
    return Terminal(det.argv(("shell", *words)), cwd=det.cwd, env=det.env(SHELL))


@pytest.fixture
def shell(det) -> Iterator[Terminal]:
    terminal = open_shell(det)
    yield terminal
    terminal.close()


def test_a_shell_has_a_terminal_and_its_slots(det, shell):
    shell.read_until("> ")
    shell.type("stty size; echo slots $DET_SLOT_IDS; pwd\n")
    shell.read_until("30 100")
    shell.read_until("slots [0]")
    shell.read_until(str(det.cwd))
    shell.resize(20, 50)
    os.kill(shell.process.pid, signal.SIGWINCH)
    # The program says that it runs, in other letters than the command that is echoed.
    shell.type("sh -c 'echo be''gun; exec sleep 600'\n")
    shell.read_until("begun")
    # Ctrl-C ends the program in the shell, and not the shell.
    shell.type("\x03")
    shell.read_until("> ")
    shell.type("stty size; exit 5\n")
    shell.read_until("20 50")
    assert shell.process.wait(LIMIT_SECONDS) == 5
    assert det("queue").stdout.startswith("nothing waits for slots")
    assert det.json("shell", "list", "--all")[0]["state"] == "COMPLETED"


def test_the_end_of_the_client_ends_all_that_the_shell_started(det, shell, wait_until):
    shell.read_until("> ")
    shell.type("(setsid nohup sleep 600 > log 2>&1; echo no) & echo pid $!\n")
    shell.read_until("pid ")
    assert det.json("shell", "list")[0]["id"] == 1
    shell.process.kill()
    wait_until(lambda: det("queue").stdout.startswith("nothing"), "the slots")
    wait_until(lambda: det.json("show", "1")["experiment"]["state"] == "COMPLETED", "its end")
    # The fixture fails where a process is left.


def test_a_shell_that_is_killed_says_why_it_ends(det, shell):
    shell.read_until("> ")
    assert det("shell", "kill", "1").stdout == "shell 1 is asked to end\n"
    shell.read_until("det: this shell ends: its slots are needed, or it was canceled")
    assert shell.process.wait(LIMIT_SECONDS) == 1
    assert det.json("shell", "list", "--all")[0]["state"] == "CANCELED"


def test_an_idle_shell_ends(det):
    terminal = open_shell(det, "start", "--idle", "0.1", "cat")
    terminal.type("typed\n")
    terminal.read_until("typed\r\ntyped")
    terminal.read_until("det: this shell ends: it was idle for 6 seconds, which is its limit")
    assert terminal.process.wait(LIMIT_SECONDS) == 124
    terminal.close()


def test_a_shell_without_a_terminal_is_refused(det):
    done = det("shell", "--slots", "0", status=2)
    assert done.stderr == (
        "det: det shell needs a terminal; without one, run a command: det cmd run -- COMMAND\n"
    )
    assert det("shell", "list").stdout == "no shells wait or run\n"
    assert "--max-hours" in det("shell", "start", "--max-hours", "0", status=2).stderr
