"""Run a command with a limit: `python -m tools.watchdog MINUTES COMMAND...`.

When the time is over, it prints the tree of the command's processes and the stack of each Python
among them, ends all of them, and exits with status 124. Stacks need py-spy in this environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

TIMED_OUT = 124
SECONDS_FOR_A_STACK = 20


def main(arguments: list[str]) -> int:
    """Run the command and return its status."""
    minutes, command = float(arguments[0]), arguments[1:]
    process = subprocess.Popen(command)
    try:
        return process.wait(timeout=minutes * 60)
    except subprocess.TimeoutExpired:
        print(f"\n{command[0]} did not end within {minutes:g} minutes.", flush=True)
    except KeyboardInterrupt:
        return process.wait()
    below = processes_below(process.pid)
    show_tree(below)
    for pid in below:
        if _is_python(pid):
            show_stack(pid)
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    return TIMED_OUT


def processes_below(pid: int) -> list[int]:
    """Return a process and all that descend from it, parents first."""
    columns = ["ps", "-e", "-o", "pid=,ppid="]
    # The system's own, wherever it is.
    listed = subprocess.run(columns, capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = (int(each) for each in line.split())
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def show_tree(pids: list[int]) -> None:
    """Print processes with their age in seconds, their state and their command."""
    chosen = ",".join(str(pid) for pid in pids)
    columns = "pid,ppid,etimes,pcpu,stat,args"
    command = ["ps", "--forest", "-ww", "-o", columns, "-p", chosen]
    subprocess.run(command, check=False)
    sys.stdout.flush()


def show_stack(pid: int) -> None:
    """Print the stacks of a Python process's threads."""
    print(f"\nStack of process {pid}:", flush=True)
    spy = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if spy is None:
        print("py-spy is not installed.", flush=True)
        return
    command = [spy, "dump", "--pid", str(pid)]
    try:
        subprocess.run(command, timeout=SECONDS_FOR_A_STACK, check=False)
    except subprocess.TimeoutExpired:
        print("py-spy did not end.", flush=True)


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").resolve().name
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
