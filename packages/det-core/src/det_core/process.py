"""Which process a run has, noted beside its log, so that a later driver finds it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path


def note_process(log_dir: Path, pid: int, rank: int = 0) -> None:
    """Note the process of one rank of a run, whole or not at all."""
    name = f"process-{rank}.json" if rank else "process.json"
    temporary = log_dir / f".{name}"
    temporary.write_text(json.dumps({"pid": pid, "born": born(pid)}))
    temporary.replace(log_dir / name)


def noted_processes(log_dir: Path) -> list[tuple[int, str]]:
    """Return the noted processes of a run by rank, each with what tells it from a later one of the same number."""
    found = []
    for file in sorted(log_dir.glob("process*.json"), key=lambda file: (len(file.name), file.name)):
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads(file.read_text())
            found.append((noted["pid"], noted["born"]))
    return found


def born(pid: int) -> str | None:
    """Return what tells a process from a later one of the same number, or None when it is gone."""
    stat = _stat(pid)
    return stat[19] if stat else None


def is_running(pid: int, birth: str) -> bool:
    """Tell whether that process is there, and not as a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[19] == birth and stat[0] != "Z"


def end_group(leader: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_leftover(log_dir: Path, patience: float) -> None:
    """Wait for the processes that an earlier driver started to end by themselves, then end them."""
    deadline = time.monotonic() + patience
    for pid, birth in noted_processes(log_dir):
        while is_running(pid, birth) and time.monotonic() < deadline:
            time.sleep(0.02)
        if born(pid) in (None, birth):
            end_group(pid)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
