"""Keeps a script from outliving its driver: `python -m det_core.guard FD -- COMMAND...`.

A trial class learns from its connection that the driver is gone. A script need not have one; this process holds the end
of a pipe whose other end the driver holds, and when that closes the script gets SIGTERM, and SIGKILL when it has had the
configuration's `preemption_timeout` to save.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from det_core.process import adopt_orphans, kill_below

LAUNCHERS = ("launch", "torchrun", "torch.distributed.run", "horovodrun", "mpirun", "mpiexec", "srun", "deepspeed")


def main(argv: list[str]) -> int:
    """Run the command; return its status, 128 + n for a signal n."""
    fd, command = int(argv[0]), argv[2:]
    sys.stderr.write(notice(command[-1], int(os.environ.get("DET_SLOTS", "1"))))
    sys.stderr.flush()
    adopt_orphans()  # so that whatever the command starts can be found from here
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # it reaches the whole group; the command decides
    process = subprocess.Popen(command)
    pidfd = os.pidfd_open(process.pid)
    ready, _, _ = select.select([pidfd, fd], [], [])
    if pidfd not in ready:
        _end(process)
    status = process.wait()
    kill_below(os.getpid())
    return 128 - status if status < 0 else status


def beside(command: Sequence[str], **options: Any) -> tuple[subprocess.Popen[Any], int]:
    """Start a command that ends when this process does, however that ends, or when the descriptor that is returned is closed.

    It has a session of its own, and no standard input; `options` are Popen's.
    """
    guard, held = os.pipe()
    argv = [sys.executable, "-P", "-m", "det_core.guard", str(guard), "--", *command]
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(guard,), **options)
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(guard)
    return process, held


def notice(script: str, slots: int) -> str:
    """Return what a script is told in its log that has several slots, and no launcher that is known."""
    if slots == 1 or any(word in script for word in LAUNCHERS):
        return ""
    return (
        f"det: this run has {slots} slots and its entrypoint is one process; unless that starts its ranks itself, write: "
        f"python3 -m det_core.launch.torch_distributed {script}\n"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command, which gets as long to save as its configuration says, and then this process, too."""
    from .environ import WorkerEnv

    os.killpg(0, signal.SIGTERM)
    env = WorkerEnv.read(os.environ)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(env.patience if env else 0.0)
    kill_below(os.getpid())
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
