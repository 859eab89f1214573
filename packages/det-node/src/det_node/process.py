"""Records the process of a run next to its log, so that a later driver finds it.

Also describes how a process ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import cache
from pathlib import Path

from det_core.support.paths import read_regular

TIMED_OUT = 124
"""The exit status of a command or a shell that was ended by a limit, as that of `timeout`."""
_CAUSES = {
    signal.SIGKILL: "most often the machine or its container had no memory left",
    signal.SIGSEGV: "compiled code crashed; with PYTHONFAULTHANDLER=1 the log says where",
    signal.SIGABRT: "compiled code gave up; the log has its last words",
    signal.SIGBUS: "most often /dev/shm or a disk was full",
    signal.SIGILL: "compiled code was made for another processor",
}


def note_process(log_dir: Path, pid: int, rank: int = 0) -> None:
    """Note the process of one rank of a run.

    The note is written in one call. One that is incomplete is ignored.
    """
    with open(
        log_dir / (f"process-{rank}.json" if rank else "process.json"), "wb", buffering=0
    ) as file:
        file.write(json.dumps({"pid": pid, "born": process_identity(pid)}).encode())


def noted_processes(log_dir: Path) -> list[tuple[int, str]]:
    """Return the noted processes of a run by rank.

    Each is the process number and the value of `process_identity`.
    """
    found = []
    for file in sorted(log_dir.glob("process*.json"), key=lambda file: (len(file.name), file.name)):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            noted = json.loads(read_regular(file))
            # None means that the process had ended before it was noted.
            if noted["born"]:
                found.append((noted["pid"], noted["born"]))
    return found


def process_identity(pid: int) -> str | None:
    """Return what distinguishes a process from others with the same number.

    This is its start time, the boot, and its PID namespace, as each container has its own. None
    when the process is gone.
    """
    stat = _stat(pid)
    return f"{stat[19]} {_boot_and_namespace()}" if stat else None


def is_running(pid: int, birth: str) -> bool:
    """Return whether the process is there, and is not a zombie."""
    stat = _stat(pid)
    return stat is not None and f"{stat[19]} {_boot_and_namespace()}" == birth and stat[0] != "Z"


def end_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Kill what is left of a process group, or send it another signal.

    Does nothing where no process is left.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, also in other sessions."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def kill_below(ancestor: int, patience: float = 2.0) -> None:
    """Kill all descendants of a process, in whatever session.

    Repeats until none is found, as killing one may uncover others.
    """
    # A process that waits for a broken disk cannot be killed.
    deadline = time.monotonic() + patience
    while signal_below(ancestor, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.002)


def signal_below(ancestor: int, number: signal.Signals, *, outside: int | None = None) -> bool:
    """Signal all descendants of a process, in whatever session. Return whether there was any.

    Those in the process group `outside` are left out.
    """
    found = [pid for pid in _below(ancestor) if outside is None or _group(pid) != outside]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(found)


def sessions_below(ancestor: int) -> set[int]:
    """Return the sessions of the living descendants of a process."""
    return {int(stat[3]) for pid in _below(ancestor) if (stat := _stat(pid))}


def _group(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[2]) if stat else None


def _below(ancestor: int) -> list[int]:
    """Return the living descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))):
            children.setdefault(int(stat[1]), []).append(int(entry) if stat[0] not in "ZX" else 0)
    found, waiting = list[int](), [ancestor]
    while waiting:
        found += (more := [pid for pid in children.pop(waiting.pop(), []) if pid])
        waiting += more
    return found


def cpu_seconds(ancestor: int) -> float:
    """Return the CPU time of the living descendants of a process, and of the children they had."""
    ticks = sum(
        int(field) for pid in _below(ancestor) if (stat := _stat(pid)) for field in stat[11:15]
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def end_leftover(log_dir: Path, patience: float) -> None:
    """Wait for the processes that an earlier driver started, then kill those that are left.

    Processes of another boot are left alone.
    """
    deadline = time.monotonic() + patience
    for pid, birth in noted_processes(log_dir):
        while is_running(pid, birth) and time.monotonic() < deadline:
            time.sleep(0.02)
        if birth.endswith(_boot_and_namespace()) and process_identity(pid) in (None, birth):
            end_group(pid)


@cache
def _boot_and_namespace() -> str:
    return (
        f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
        f" {os.readlink('/proc/self/ns/pid')}"
    )


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def how_it_ended(status: int) -> str:
    """Return how a process ended, by which status or signal, and the signal's most frequent cause.

    A negative status is a signal's number. So is 128 + the number, which shells return.
    """
    try:
        number = signal.Signals(-status if status < 0 else status - 128)
    except ValueError:
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    cause = _CAUSES.get(number)
    return f"was killed by {number.name}" + (f": {cause}" if cause else "")


def exit_status(status: int) -> str:
    """Return how a process ended. A negative status is a signal's number."""
    if status == 0:
        return (
            "the process ended before the trial was complete; return from its methods, and let det"
            " end it"
        )
    return f"the process {how_it_ended(status)}"
