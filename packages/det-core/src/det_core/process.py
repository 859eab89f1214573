"""Which process a run has, noted beside its log, so that a later driver finds it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import cache
from pathlib import Path


def note_process(log_dir: Path, pid: int, rank: int = 0) -> None:
    """Note the process of one rank of a run, in one write: a note that is not whole is none."""
    with open(log_dir / (f"process-{rank}.json" if rank else "process.json"), "wb", buffering=0) as file:
        file.write(json.dumps({"pid": pid, "born": born(pid)}).encode())


def noted_processes(log_dir: Path) -> list[tuple[int, str]]:
    """Return the noted processes of a run by rank, each with what tells it from a later one of the same number."""
    found = []
    for file in sorted(log_dir.glob("process*.json"), key=lambda file: (len(file.name), file.name)):
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads(file.read_text())
            if noted["born"]:  # else it had ended before it could be noted
                found.append((noted["pid"], noted["born"]))
    return found


def born(pid: int) -> str | None:
    """Return what tells a process from every other one that has its number, or None when it is gone.

    That is when it began, and where it counts: since which boot, in which space of numbers, as a container has its own.
    """
    stat = _stat(pid)
    return f"{stat[19]} {_here()}" if stat else None


def is_running(pid: int, birth: str) -> bool:
    """Tell whether that process is there, and not as a zombie."""
    stat = _stat(pid)
    return stat is not None and f"{stat[19]} {_here()}" == birth and stat[0] != "Z"


def end_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Kill what is left of a process group, or send it another signal; harmless where nothing is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def adopt_orphans() -> None:
    """Become the parent of what this process's children start and leave, also in sessions of its own."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def kill_below(ancestor: int, patience: float = 2.0) -> None:
    """Kill all that a process started, directly or not and in whatever session; killing one may uncover others."""
    deadline = time.monotonic() + patience  # one that waits for a broken disk cannot be killed
    while (found := _below(ancestor)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


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


def end_leftover(log_dir: Path, patience: float) -> None:
    """Wait for the processes that an earlier driver started to end by themselves, then end them; never those of another boot."""
    deadline = time.monotonic() + patience
    for pid, birth in noted_processes(log_dir):
        while is_running(pid, birth) and time.monotonic() < deadline:
            time.sleep(0.02)
        if birth.endswith(_here()) and born(pid) in (None, birth):
            end_group(pid)


@cache
def _here() -> str:
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
