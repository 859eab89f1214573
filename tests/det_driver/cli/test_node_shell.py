"""Shells and commands on nodes that an engine provides: an agent with directories of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.terminal import LIMIT_SECONDS, Terminal

pytestmark = [pytest.mark.process, pytest.mark.slow]
ENGINE = "engine: {name: ssh, hosts: [127.0.0.1], agent: 'env AT={host}'}\n"
"""Nothing tells this agent that its host is the driver's."""


@pytest.fixture
def environ(det, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "user").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.txt").write_text("of my machine\n")
    det.home.mkdir(exist_ok=True)
    (det.home / "config.yaml").write_text(ENGINE)
    return {
        "HOME": str(tmp_path / "user"),
        "DET_SLOTS_TOTAL": "1",
        "DET_LEASE": "8",
        "SHELL": "/bin/sh",
        "PS1": "> ",
        "TERM": "xterm-color",
    }


@pytest.fixture
def shell(det, environ: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    words = ("shell", "--engine", "ssh", "--code", str(tmp_path / "code"))
    made = Terminal(det.argv(words), cwd=det.cwd, env=det.env(environ))
    yield made
    made.close()


def test_a_shell_on_a_node_has_a_terminal(det, shell: Terminal, tmp_path: Path) -> None:
    shell.type("stty size; echo $AT $TERM; cat mine.txt; echo in $PWD\n")
    for each in ("30 100", "127.0.0.1 xterm-color", "of my machine", f"in {tmp_path}/user/.cache"):
        shell.read_until(each)
    shell.resize(20, 50)
    os.kill(shell.process.pid, signal.SIGWINCH)
    shell.type("sh -c 'echo be''gun; exec sleep 600'\n")
    shell.read_until("begun")
    # Ctrl-C ends the program in the shell, and not the shell.
    shell.type("\x03")
    shell.type("stty size\n")
    shell.read_until("20 50")
    # Several windows of what is on the way at once, to the last byte.
    shell.type("PS1=; seq 200000 | tail -n +100000; echo th''ere\n")
    shell.read_until("100000\r\n")
    assert shell.read_until("there").split() == [str(n) for n in range(100001, 200001)]
    shell.type("exit 5\n")
    assert shell.process.wait(LIMIT_SECONDS) == 5
    assert det.json("shell", "list", "--all")[0]["state"] == "COMPLETED"
    kept = [each for each in det.home.rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if b"th''ere" in each.read_bytes()]


def test_a_shell_on_a_node_ends_with_its_client(det, shell: Terminal, wait_until) -> None:
    shell.type("(setsid nohup sleep 600 > log 2>&1; echo no) & echo be''gun\n")
    shell.read_until("begun")
    shell.process.kill()
    wait_until(lambda: det.json("show", "1")["experiment"]["state"] == "COMPLETED", "its end", 60)
    # The fixture fails where a process is left.


def test_a_shell_on_a_node_that_is_killed_says_why_it_ends(det, shell: Terminal) -> None:
    shell.type("echo be''gun\n")
    shell.read_until("begun")
    det("shell", "kill", "1")
    shell.read_until("det: this shell ends: its slots are needed, or it was canceled")
    assert shell.process.wait(LIMIT_SECONDS) == 1


def test_a_slow_terminal_holds_up_only_its_program(det, shell: Terminal, wait_until) -> None:
    """The agent goes on to answer, and nothing is kept but what is on the way."""
    shell.type("PS1=; echo be''gun; seq 300000\n")
    shell.read_until("begun")
    time.sleep(2 * 8)
    driver = int(det.json("show", "1")["experiment"]["pid"])
    memory = Path(f"/proc/{driver}/status").read_text()
    assert det.json("show", "1")["experiment"]["state"] == "ACTIVE"
    assert int(memory.partition("VmRSS:")[2].split()[0]) < 250_000
    shell.read_until("\r\n300000\r\n")
    shell.type("exit 4\n")
    assert shell.process.wait(LIMIT_SECONDS) == 4


def test_a_shell_ends_with_the_connection_to_its_node(det, shell: Terminal, wait_until) -> None:
    """As that of a driver that was killed."""
    shell.type("echo be''gun\n")
    shell.read_until("begun")
    os.kill(int(det.json("show", "1")["experiment"]["pid"]), signal.SIGKILL)
    shell.read_until("det: the shell ended without its status")
    assert shell.process.wait(LIMIT_SECONDS) == 1


def test_a_command_on_a_node_has_its_output_and_status(det, environ, tmp_path: Path) -> None:
    code = ("--engine", "ssh", "--code", str(tmp_path / "code"))
    argv = det.argv(("cmd", "run", *code, "--", "sh", "-c", "cat mine.txt; echo $AT; exit 7"))
    done = subprocess.run(
        argv,
        cwd=det.cwd,
        env=det.env(environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("of my machine\n127.0.0.1\n", 7), done.stderr


def test_bad_engines_of_a_shell_are_refused(det, tmp_path: Path) -> None:
    done = det("cmd", "run", "--engine", "slrum", "true", status=2)
    assert "no plugin registers the engine 'slrum'" in done.stderr
    done = det("cmd", "run", "--engine", "in-process", "true", status=2)
    assert "in-process" in done.stderr
    done = det("cmd", "run", "--code", str(tmp_path), "true", status=2)
    assert "--code is for a server or a node" in done.stderr
