"""Which process a run has, noted beside its log, so that a later driver finds it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

PROCESS_FILE = "process.json"


def note_process(log_dir: Path, pid: int) -> None:
    """Note the process of a run, whole or not at all."""
    temporary = log_dir / f".{PROCESS_FILE}"
    temporary.write_text(json.dumps({"pid": pid, "born": born(pid)}))
    temporary.replace(log_dir / PROCESS_FILE)


def noted_process(log_dir: Path) -> tuple[int, str] | None:
    """Return the process of a run and what tells it from a later one of the same number, where it was noted."""
    try:
        noted = json.loads((log_dir / PROCESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return noted["pid"], noted["born"]


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
    """Wait for a process that an earlier driver started to end by itself, then end it."""
    noted = noted_process(log_dir)
    if noted is None:
        return
    pid, birth = noted
    deadline = time.monotonic() + patience
    while is_running(pid, birth) and time.monotonic() < deadline:
        time.sleep(0.02)
    if born(pid) in (None, birth):
        end_group(pid)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
