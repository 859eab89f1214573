"""Commands on the slots of a home: real drivers, agents and processes."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import pytest

ONE = {"DET_SLOTS_TOTAL": "1"}


def test_a_command_runs_here_and_ends_with_its_status(det):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    det.cwd.joinpath("here").touch()
    done = det("cmd", "run", "--slots", "0", "--", "python3", "-c", f"{code}", status=3)
    assert sorted(done.stdout.splitlines()) == ["err", "out"]
    assert det("cmd", "run", "--slots", "0", "ls").stdout == "here\n"
    assert det("cmd", "logs", "2").stdout == "here\n"
    assert det("command", "list").stdout == "no commands wait or run\n"
    assert [row["state"] for row in det.json("cmd", "list", "--all")] == ["COMPLETED", "ERROR"]
    assert det.json("list") == []
    assert len(det.json("list", "--commands")) == 2


def test_commands_wait_in_the_queue_and_are_killed(det, wait_until):
    det("cmd", "run", "-d", "sh", "-c", "echo $DET_SLOT_IDS; exec sleep 600", env=ONE)
    second = det.start("cmd", "run", "--priority", "50", "echo", "second", env=ONE)
    wait_until(lambda: "waiting" in det("queue").stdout, "a command that waits")
    assert [row["id"] for row in det.json("cmd", "list")] == [2, 1]
    det("cmd", "kill", "1")
    assert second.communicate(timeout=60)[0].splitlines()[-1] == "second"
    assert det("cmd", "logs", "-f", "1").stdout == "[0]\n"
    assert {row["id"]: row["state"] for row in det.json("cmd", "list", "--all")} == {
        1: "CANCELED",
        2: "COMPLETED",
    }
    assert "is canceled already" in det("cmd", "kill", "1", status=2).stderr


def test_an_interrupt_ends_the_command_with_all_it_started(det, wait_until):
    inner = shlex.join(["setsid", sys.executable, "-c", "import time; time.sleep(600)"])
    process = det.start("cmd", "run", "--", "sh", "-c", f"{inner} & echo begun; wait", env=ONE)
    logs = lambda: det("cmd", "logs", "1", status=None).stdout  # noqa: E731
    wait_until(lambda: logs() == "begun\n", "the command")
    os.kill(process.pid, signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert (process.returncode, output.splitlines()[-1]) == (1, "det: command 1 is canceled")
    # The fixture fails where a process is left.


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "--slots", "9", "true"), "this machine has 1 CPU slots and no GPU"),
        (("run", "--priority", "0", "true"), "--priority"),
        (("run", "--idle", "0", "true"), "--idle"),
        (("run", "--max-hours", "0", "true"), "--max-hours"),
        (("run", "--max-hours", "nan", "true"), "not a finite number"),
        (("run",), "COMMAND"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(det, words, why):
    done = det("cmd", *words, status=2, env=ONE)
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert det("cmd", "list", "--all").stdout == "no commands\n"


@pytest.mark.thorough
def test_a_command_of_a_killed_driver_is_taken_up(det, wait_until):
    loop = "echo begun; while [ ! -e end ]; do sleep 0.1; done"
    det("cmd", "run", "-d", "sh", "-c", loop, env={"DET_LEASE": "60"})
    wait_until(lambda: det("cmd", "logs", "1").stdout == "begun\n", "the command")
    os.kill(det.json("show", "1")["experiment"]["pid"], signal.SIGKILL)
    wait_until(lambda: det.json("list", "--commands")[0]["orphaned"], "the end of the driver")
    det("resume", "1", "--detach")
    det.cwd.joinpath("end").touch()
    assert det("cmd", "logs", "-f", "1").stdout == "begun\n"
    assert det.json("cmd", "list", "--all")[0]["state"] == "COMPLETED"
