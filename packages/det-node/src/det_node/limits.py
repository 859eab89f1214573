"""Ends a process at its limits: after some time, or when it has been idle."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from det_node.process import TIMED_OUT, signal_below

GRACE_SECONDS = 30
"""How long a process may take to end after SIGTERM."""
_POLL_SECONDS = 1.0


def end_in_time(
    process: subprocess.Popen[bytes],
    name: str,
    most: float | None,
    idle: float | None,
    was_active: Callable[[], bool],
) -> int:
    """Wait for the end of a process, or end it at its limits, and return its exit status.

    - `name`: what users call it.
    - `most`: how long it may run, in seconds.
    - `idle`: for how long `was_active`, which is called each second, may return False.
    """
    ended = _wait(process, most, idle, was_active)
    if not ended:
        status = process.wait()
        return 128 - status if status < 0 else status
    sys.stderr.write(f"det: the {name} is ended: {ended}\n")
    sys.stderr.flush()
    signal_below(os.getpid(), signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    # Whoever started this process kills what is left.
    return TIMED_OUT


def _wait(
    process: subprocess.Popen[bytes],
    most: float | None,
    idle: float | None,
    was_active: Callable[[], bool],
) -> str:
    """Wait for the end of the process, or return why it has to end."""
    began = active = time.monotonic()
    pidfd = os.pidfd_open(process.pid)
    poll = None if most is None and idle is None else _POLL_SECONDS
    while not select.select([pidfd], [], [], poll)[0]:
        now = time.monotonic()
        if most is not None and now - began >= most:
            return f"it ran for {most:g} seconds, which is its limit"
        if idle is None:
            continue
        if was_active():
            active = now
        if now - active >= idle:
            return f"it was idle for {idle:g} seconds, which is its limit"
    return ""
