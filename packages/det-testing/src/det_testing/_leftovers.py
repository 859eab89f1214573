"""What a process holds that something may have forgotten to release."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path


def leftovers() -> set[str]:
    """Return the names of this process's threads, child processes and open files, sockets and pipes."""
    return _threads() | _children() | _files()


def _threads() -> set[str]:
    return {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _children() -> set[str]:
    known = {f"process {child.pid}" for child in multiprocessing.active_children()}
    for task in Path("/proc/self/task").glob("*/children"):
        known |= {f"process {pid}" for pid in task.read_text().split()}
    return known


def _files() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").glob("*"):
        try:
            found.add(f"file {descriptor.name}: {os.readlink(descriptor)}")
        except FileNotFoundError:
            continue  # the one that lists the others
    return found
