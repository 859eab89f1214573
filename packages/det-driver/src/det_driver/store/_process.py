"""Which process a pid means: a pid is used again, a pid with its start time is not."""

from __future__ import annotations

import sys
from pathlib import Path


def boot_id() -> str:
    """What tells this start of the machine from every other; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def born(pid: int) -> str | None:
    """When the process started, in the system's own terms; None where there is no such process, or only its corpse."""
    if sys.platform != "linux":
        return _born_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may hold anything; count from its end.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else f"{boot_id()} {fields[18]}"


def _born_by_ps(pid: int) -> str | None:
    import subprocess

    answer = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()
