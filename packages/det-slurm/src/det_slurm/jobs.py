"""Slurm's commands.

Jobs are found by name. A controller that is killed may forget a job and give its id to the next
one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

from det_core.errors import DetError

_SECONDS = 60.0
WAITING = ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
FAILED = [
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
]
ENDED = ["COMPLETED", *FAILED]


class Job(NamedTuple):
    """The state of a job in Slurm's words.

    `machines` is the number of its nodes. `words` is the last message of an agent that failed.
    """

    state: str
    machines: str = "1"
    id: str = ""
    nodes: str = ""
    reason: str = ""
    words: str = ""


def find(prefix: str) -> dict[str, Job]:
    """Return, by name, this user's jobs whose names begin with `prefix`.

    Jobs that have ended are included as long as Slurm knows them.
    """
    output = query(
        "squeue", "--states=all", f"--user={os.getuid()}", "--format=%j|%T|%D|%i|%N|%r|%k"
    )
    lines = (
        line.replace("|(null)", "|").split("|", 6)
        for line in output.splitlines()
        if line.startswith(prefix)
    )
    # Of several jobs with one name, the last one counts.
    known = sorted(lines, key=lambda job: (job[1] not in ENDED, job[1] not in WAITING))
    return {name: Job(*rest) for name, *rest in known}


def lost(nodes: Iterable[str]) -> set[str]:
    """Return the nodes that Slurm cannot reach or does not know.

    A job that Slurm reports as ended may still run on such a node.
    """
    wanted = {node for node in nodes if node}
    output = _run(
        "sinfo", "--noheader", "--Node", f"--nodes={','.join(wanted)}", "--format=%N|%T"
    ).stdout
    states = (line.partition("|")[::2] for line in output.splitlines())
    return wanted - {
        node for node, state in states if not state.endswith("*") and not state.startswith("down")
    }


def submit(options: Iterable[str], script: str) -> str:
    """Submit a script on the standard input. Return what is wrong with it, or an empty string."""
    return _words(done) if (done := _run("sbatch", *options, stdin=script)).returncode else ""


def cancel(name: str, *, at_once: bool) -> None:
    """Cancel a pending job, and send SIGTERM to a running one, or SIGKILL with `at_once`.

    After SIGTERM alone, Slurm does not kill the job when KillWait is over.
    """
    for how in (
        (("--signal=KILL",), ())
        if at_once
        else (("--state=PENDING",), ("--state=RUNNING", "--signal=TERM"))
    ):
        _run("scancel", "--quiet", f"--user={os.getuid()}", f"--name={name}", *how)


def query(*words: str) -> str:
    """Return the output of a command that asks Slurm's controller.

    Raises ConnectionError if the controller does not answer.
    """
    if (done := _run(*words, "--noheader")).returncode:
        raise ConnectionError(f"Slurm's controller does not answer ({_words(done)})")
    return done.stdout


def _run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise DetError(
            f"there is no command {words[0]} here; start det where Slurm's are, on a login node"
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            words, 124, "", f"{words[0]} said nothing for {_SECONDS:.0f} s"
        )


def _words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"{done.args[0]} ended with status {done.returncode}"
