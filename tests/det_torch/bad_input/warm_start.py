"""The command `det` without the wait for torch.

A process that has imported it is forked for each command.

`python warm_start.py` reads one request of JSON on each line of stdin and answers with one line:
the exit status of the command, and its process's number, which is that of its session too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import torch

import det_torch  # noqa: F401
from det_driver.cli import main as det_main
from det_driver.driver import Driver  # noqa: F401

LIMIT_SECONDS = 120.0

torch.optim.SGD([torch.zeros(1)])  # imports what torch puts off until the first optimizer


def serve() -> None:
    """Run the commands that are asked for, one after the other."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _command(request)
        answer = {"status": _wait(pid), "pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _command(request: dict[str, Any]) -> None:
    """Become the command, in a session of its own; never returns."""
    os.setsid()
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open to the end of the process
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115 - likewise
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if not request["mighty"]:
        _heed_modes()
    sys.path[0:1] = []  # the folder of this file, which the command would not have
    status: Any = 1
    try:
        det_main(request["argv"])
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _heed_modes() -> None:
    """Give up root's right to read and write what the modes of files forbid.

    Harmless for others.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the structures, this process
    data = (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    data[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, among the effective ones
    libc.capset(header, data)


def _wait(pid: int) -> int:
    """Wait for a command and return its exit status, as `subprocess` gives it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)


if __name__ == "__main__":
    serve()
