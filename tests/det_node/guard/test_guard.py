"""The guard of a script: whose end it takes for the script's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.other_user import needs_other

from det_node import guard

pytestmark = pytest.mark.process

SAVES = """
import os, pathlib, signal, sys, time

def save(number, frame):
    time.sleep(0.5)
    pathlib.Path("saved").write_text("all of it")
    sys.exit(7)

signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").write_text(str(os.getppid()))
time.sleep(60)
"""


FORKS = "{python} train.py; echo went on"
TRAPS = "trap 'exit {status}' TERM; {python} train.py & wait"
# Programs that give what they start a process group or a session of its own.
GROUPS = (
    "timeout 100 {python} train.py",
    "timeout 100 {python} train.py; :",
    "setsid {python} train.py",
    "setsid -w {python} train.py; :",
    "set -m; {python} train.py & wait",
)


@pytest.mark.parametrize(
    ("to", "script"),
    [("all", FORKS), ("shell", FORKS), ("gone", FORKS)]
    + [(to, TRAPS.replace("{status}", status)) for to in ("all", "gone") for status in ("0", "143")]
    + [(to, script) for to in ("all", "gone") for script in GROUPS],
)
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_script_saves_at_sigterm_though_its_shell_dies(
    tmp_path: Path, wait_until: Any, shell: str, to: str, script: str
) -> None:
    """A shell that forks dies of the signal at once.

    Dash does, and bash where something follows.

    Others have a trap, and leave with any status. The signal comes from outside, or from the guard,
    whose agent is `gone`.
    """
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    if shell == "dash" and "set -m" in script:
        pytest.skip("dash has job control in a terminal only")
    (tmp_path / "train.py").write_text(SAVES)
    read, write = os.pipe()
    command = [shell, "-c", script.format(python=sys.executable)]
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "det_node.guard", str(read), "--", *command],
        cwd=tmp_path,
        pass_fds=(read,),
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(read)
    try:
        ready = tmp_path / "ready"
        wait_until(lambda: ready.exists() and ready.read_text(), "the script", 30)
        if to == "all":
            os.killpg(guard.pid, signal.SIGTERM)
        elif to == "shell":
            os.kill(int(ready.read_text()), signal.SIGTERM)
        else:
            os.close(write)
        said, _ = guard.communicate(timeout=60)
    finally:
        if to != "gone":
            os.close(write)
        guard.kill()
    assert (tmp_path / "saved").read_text() == "all of it"
    # A guard whose agent is gone ends its whole group, and itself, at last.
    assert (guard.returncode, said) == (-signal.SIGKILL if to == "gone" else 7, "")


def test_a_run_of_no_trial_has_the_usual_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that only tries its node has the driver's address, and no trial."""
    monkeypatch.setenv("DET_DRIVER", "127.0.0.1:1")
    monkeypatch.delenv("DET_TRIAL_ID", raising=False)
    assert guard._patience() == guard._GRACE_SECONDS


HELPED = """
import pathlib, signal, subprocess, sys, time

subprocess.Popen([sys.executable, "helper.py"], start_new_session=True)

def save(number, frame):
    time.sleep(0.5)
    pathlib.Path("saved").write_text("all of it")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
while not pathlib.Path("helps").exists():
    time.sleep(0.01)
pathlib.Path("ready").touch()
time.sleep(600)
"""
HELPER = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, {handler})
pathlib.Path("helps").touch()
time.sleep(600)
"""
PATIENT = """
import sys
from det_node import guard
guard._GRACE_SECONDS = 600.0
sys.exit(guard.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("to", ["all", "gone"])
@pytest.mark.parametrize("script", ["exec {python} train.py", "{python} train.py; echo went on"])
@pytest.mark.parametrize("handler", ["lambda *_: sys.exit(1)", "signal.SIG_IGN"])
def test_a_helper_in_a_session_of_its_own_does_not_count(
    tmp_path: Path, wait_until: Any, handler: str, script: str, to: str
) -> None:
    """It may fail at SIGTERM, or ignore it, where the script saves and ends with status 0."""
    (tmp_path / "train.py").write_text(HELPED)
    (tmp_path / "helper.py").write_text(HELPER.format(handler=handler))
    read, write = os.pipe()
    command = ["sh", "-c", script.format(python=sys.executable)]
    guard = subprocess.Popen(
        [sys.executable, "-P", "-c", PATIENT, str(read), "--", *command],
        cwd=tmp_path,
        pass_fds=(read,),
        start_new_session=True,
    )
    os.close(read)
    try:
        wait_until((tmp_path / "ready").exists, "the script", 30)
        if to == "all":
            os.killpg(guard.pid, signal.SIGTERM)
        else:
            os.close(write)
        status = guard.wait(60)
    finally:
        if to != "gone":
            os.close(write)
        guard.kill()
    assert (tmp_path / "saved").read_text() == "all of it"
    assert status == (-signal.SIGKILL if to == "gone" else 0)


@needs_other
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of util-linux")
def test_a_script_waits_while_no_process_can_be_started(tmp_path: Path, wait_until: Any) -> None:
    """The limit is that of `ulimit -u`, for a user of two processes, one of which ends meanwhile.

    Root has no such limit, so that the guard is another user's, who may read all files.
    """
    user, reads = 1_000_000 + os.getpid(), "-all,+dac_override"
    read, write = os.pipe()
    tmp_path.chmod(0o777)
    as_user = [
        *("prlimit", "--nproc=2", "setpriv", f"--reuid={user}", f"--regid={user}"),
        *("--clear-groups", f"--inh-caps={reads}", f"--ambient-caps={reads}"),
        f"--bounding-set={reads}",
    ]
    command = [
        *(sys.executable, "-P", "-m", "det_node.guard", str(read)),
        *("--", "/bin/sh", "-c", "exec touch trained"),
    ]
    other = subprocess.Popen([*as_user, "sleep", "60"])
    with (tmp_path / "log").open("w") as log:
        guard = subprocess.Popen(
            [*as_user, *command], cwd=tmp_path, pass_fds=(read,), start_new_session=True, stderr=log
        )
    os.close(read)
    try:
        wait_until(lambda: "ulimit -u" in (tmp_path / "log").read_text(), "that it waits", 30)
        assert not (tmp_path / "trained").exists()
        other.kill()
        other.wait()
        assert guard.wait(30) == 0
    finally:
        os.close(write)
        for process in (guard, other):
            process.kill()
            process.wait()
    assert (tmp_path / "trained").exists()
    assert "waits until it can be started" in (tmp_path / "log").read_text()
