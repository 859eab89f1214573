"""Slurm's commands; jobs go by names, as a controller that is killed gives the id of one that it forgets to the next one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

from det_core.errors import DetError

_SECONDS = 60.0
WAITING = ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
FAILED = ["BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"]
ENDED = ["COMPLETED", *FAILED]


class Job(NamedTuple):
    """What Slurm says of a job on so many nodes; `words` is what its agent said last, where it failed."""

    state: str
    machines: str = "1"
    id: str = ""
    nodes: str = ""
    reason: str = ""
    words: str = ""


def find(prefix: str) -> dict[str, Job]:
    """Return this user's jobs whose names begin so, by name, and those that have ended as long as Slurm knows them."""
    said = answer("squeue", "--states=all", f"--user={os.getuid()}", "--format=%j|%T|%D|%i|%N|%r|%k")
    lines = (line.replace("|(null)", "|").split("|", 6) for line in said.splitlines() if line.startswith(prefix))
    known = sorted(
        lines, key=lambda job: (job[1] not in ENDED, job[1] not in WAITING)
    )  # of one name the last one counts
    return {name: Job(*rest) for name, *rest in known}


def lost(nodes: Iterable[str]) -> set[str]:
    """Return those nodes that Slurm cannot reach, or knows nothing of: what it says has ended there may go on."""
    wanted = {node for node in nodes if node}
    said = _run("sinfo", "--noheader", "--Node", f"--nodes={','.join(wanted)}", "--format=%N|%T").stdout
    states = (line.partition("|")[::2] for line in said.splitlines())
    return wanted - {node for node, state in states if not state.endswith("*") and not state.startswith("down")}


def submit(options: Iterable[str], script: str) -> str:
    """Submit a script, which travels on the standard input; return what is wrong with it, or nothing."""
    return _words(done) if (done := _run("sbatch", *options, told=script)).returncode else ""


def cancel(name: str, *, at_once: bool) -> None:
    """Cancel a job that waits; send SIGTERM to one that runs, which is not killed after KillWait then, or SIGKILL."""
    for how in (("--signal=KILL",), ()) if at_once else (("--state=PENDING",), ("--state=RUNNING", "--signal=TERM")):
        _run("scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}", *how)


def answer(*words: str) -> str:
    """Return what a command says that asks the controller; ConnectionError where that is down."""
    if (done := _run(*words, "--noheader")).returncode:
        raise ConnectionError(f"Slurm's controller does not answer ({_words(done)})")
    return done.stdout


def _run(*words: str, told: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=told, capture_output=True, text=True, cwd="/", timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise DetError(f"there is no command {words[0]} here; start det where Slurm's are, on a login node") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"{words[0]} said nothing for {_SECONDS:.0f} s")


def _words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"{done.args[0]} ended with status {done.returncode}"
