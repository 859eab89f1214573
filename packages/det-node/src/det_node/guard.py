"""Ends a script when its agent is gone: `python -m det_node.guard FD -- COMMAND...`.

A trial class sees by its connection that the agent is gone. A script may have no connection. This
process holds one end of a pipe, and the agent holds the other one. When the agent's end closes, the
script gets SIGTERM. It gets SIGKILL after the configuration's `preemption_timeout`, in which it may
save.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from det_node.process import adopt_orphans, kill_below, sessions_below, signal_below

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
# How long a script waits for a process, and the pauses between attempts.
_START_SECONDS, _START_PAUSE_SECONDS = 60.0, 0.5
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
LAUNCHERS = (
    "launch",
    "torchrun",
    "torch.distributed.run",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "srun",
    "deepspeed",
    # A command of the user's, who decides what it starts.
    "det_node.task",
)


def main(argv: list[str]) -> int:
    """Run the command and return its exit status, which is 128 + n for a signal n."""
    fd, command, asked, started = int(argv[0]), argv[2:], list[int](), list[int]()
    sys.stderr.write(notice(command[-1], int(os.environ.get("DET_SLOTS", "1"))))
    sys.stderr.flush()
    # Whatever the command starts can then be found from here.
    adopt_orphans()

    def terminate(number: int, frame: FrameType | None) -> None:
        """Leave it to the command what happens, as the signal reaches the whole group."""
        asked.append(number)
        for pid in started:
            _pass_on(pid)

    signal.signal(signal.SIGTERM, terminate)
    if (process := _start(command, fd, asked)) is None:
        return 128 + signal.SIGTERM
    started.append(process.pid)
    pidfd = os.pidfd_open(process.pid)
    ready, _, _ = select.select([pidfd, fd], [], [])
    session = os.getsid(process.pid)
    if pidfd not in ready:
        _end(process, session)
    status = process.wait()
    # Its number may become another process's.
    started.clear()
    if asked or status == -signal.SIGTERM:
        status = _wait_for_orphans(status, session, os.getpgrp() if asked else None)
    kill_below(os.getpid())
    return 128 - status if status < 0 else status


def _start(command: list[str], fd: int, asked: list[int]) -> subprocess.Popen[bytes] | None:
    """Start the command, and wait a minute where its user may have no more processes now.

    Returns None where the script is to end before that. Raises OSError.
    """
    deadline, pause = time.monotonic() + _START_SECONDS, 0.0
    while not asked and not select.select([fd], [], [], pause)[0]:
        try:
            return subprocess.Popen(command)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM):
                raise
            why = f"{error.strerror}: the machine is out of memory, or its user may have no more"
            why += " processes (ulimit -u)"
            if time.monotonic() >= deadline:
                raise OSError(error.errno, f"the script cannot be started: {why}") from None
            if not pause:
                sys.stderr.write(f"det: the script waits until it can be started: {why}\n")
                sys.stderr.flush()
            pause = _START_PAUSE_SECONDS
    return None


def _pass_on(pid: int) -> None:
    """Send SIGTERM to the group of a command that has one of its own, as `timeout` has."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if (group := os.getpgid(pid)) != os.getpgrp():
            os.killpg(group, signal.SIGTERM)


def _wait_for_orphans(status: int, session: int, signaled: int | None) -> int:
    """Wait for processes that a shell or another program left at SIGTERM, as they may be saving.

    Those that are not in the group `signaled` get the signal now: those behind `timeout` or
    `setsid`, and all where it reached the shell alone.

    Processes of other sessions than this one and `session`, the command's, are most often helpers,
    such as the service of a tracking client. They count only where all of these sessions died of
    SIGTERM, as the shell in front of `setsid` does. Otherwise they are not waited for. Returns, of
    those that count,

    - the first status that is a failure other than death by SIGTERM,
    - else 0 where one process ended well,
    - else `status`, that of the first process.
    """
    signal_below(os.getpid(), signal.SIGTERM, outside=signaled)
    sessions, own, others = {os.getsid(0), session}, list[int](), list[int]()
    if status not in _TERMINATED:
        own.append(status)
    deadline = time.monotonic() + (_patience() or _GRACE_SECONDS)
    while time.monotonic() < deadline:
        # Looked at before the reaping: no end is missed between the two.
        living = sessions_below(os.getpid())
        for where, how in _reap():
            if how not in _TERMINATED:
                (own if where in sessions else others).append(how)
        if not (living & sessions if own else living):
            break
        time.sleep(_POLL_SECONDS)
    ended = own or others
    return next((each for each in ended if each), 0 if ended else status)


def _reap() -> Iterator[tuple[int, int]]:
    """Yield the session and status of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            session = os.getsid(found.si_pid)
            yield session, os.waitstatus_to_exitcode(os.waitpid(found.si_pid, 0)[1])


def start_guarded(command: Sequence[str], **options: Any) -> tuple[subprocess.Popen[Any], int]:
    """Start a command that ends when this process ends, in whatever way.

    It also ends when the returned descriptor is closed. It has its own session and no standard
    input. `options` are those of Popen.
    """
    guard, held = os.pipe()
    argv = [sys.executable, "-P", "-m", "det_node.guard", str(guard), "--", *command]
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(guard,), **options
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(guard)
    return process, held


def notice(script: str, slots: int) -> str:
    """Return a notice for the log of a script that has several slots and no known launcher."""
    if slots == 1 or any(word in script for word in LAUNCHERS):
        return ""
    return (
        f"det: this run has {slots} slots and its entrypoint is one process; unless that starts its"
        f" ranks itself, write: python3 -m det_node.launch.torch_distributed {script}\n"
    )


def _end(process: subprocess.Popen[bytes], session: int) -> None:
    """Make the command save and end within its configured time, then end this process."""
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        _wait_for_orphans(process.wait(_patience()), session, os.getpgrp())
    kill_below(os.getpid())
    os.killpg(0, signal.SIGKILL)


def _patience() -> float:
    """Return the seconds that the configuration gives a run to save."""
    from det_core.train.environ import WorkerEnv, variable

    # A run that only prepares or tries its node is of no trial.
    env = WorkerEnv.read(os.environ) if variable(os.environ, "DET_TRIAL_ID") else None
    return env.patience if env else _GRACE_SECONDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
