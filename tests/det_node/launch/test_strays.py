"""What a script leaves in a session of its own does not outlive the kill.

Notes of processes count since one boot only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from det_node.process import end_leftover, is_running, note_process, noted_processes

pytestmark = pytest.mark.process

STRAY = """
import subprocess, time
subprocess.Popen(["sh", "-c", "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 0.2' & sleep 1"])
time.sleep(1000)
"""
CONFIG = "entrypoint: python3 train.py\nmax_restarts: 0\nsearcher: {name: single, metric: error}\n"


def strays(det) -> list[int]:
    """The sleeping processes that run in this project's directories."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            mine = entry.name.isdigit() and (entry / "comm").read_text() == "sleep\n"
            if mine and str(det.home) in (entry / "environ").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["driver killed", "ctrl-c twice"])
def test_process_in_a_session_of_its_own_ends_with_the_script(det, wait_until, how: str) -> None:
    (det.cwd / "train.py").write_text(STRAY)
    (det.cwd / "c.yaml").write_text(CONFIG)
    process = subprocess.Popen(
        det.argv(["run", "c.yaml", "--quiet"]),
        cwd=det.cwd,
        env=det.env(None),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    det.started.append(process)
    wait_until(lambda: len(strays(det)) >= 2, "the strays", 30)
    try:
        if how == "driver killed":
            process.kill()
        else:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        process.wait(30)
        wait_until(lambda: not strays(det), "the end of the strays", 45)
    finally:
        for pid in strays(det):
            os.kill(pid, signal.SIGKILL)


def test_a_process_of_another_boot_is_never_killed(tmp_path: Path) -> None:
    """Its number may be that of a stranger's group, whose leader has ended."""
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 100 & echo $!"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert leader.stdout is not None
    member = int(leader.stdout.readline())
    leader.wait()
    ends, pidfd = select.poll(), os.pidfd_open(member)
    ends.register(pidfd, select.POLLIN)
    try:
        (tmp_path / "process.json").write_text(json.dumps({"pid": leader.pid, "born": "12345"}))
        end_leftover(tmp_path, 0)
        (tmp_path / "process.json").write_text(
            json.dumps(
                {"pid": leader.pid, "born": "12345 00000000-0000-0000-0000-000000000000 pid:[1]"}
            )
        )
        end_leftover(tmp_path, 0)
        assert ends.poll(1000) == []  # what is killed may be seen for a moment longer
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def test_a_process_of_this_boot_is_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    note_process(tmp_path, process.pid)
    [(pid, birth)] = noted_processes(tmp_path)
    assert is_running(pid, birth)
    end_leftover(tmp_path, 0)
    assert process.wait(10) == -signal.SIGKILL
