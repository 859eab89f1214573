"""Handles signals that ask a run to end. The run ends between two batches.

A second Ctrl-C is handled as it was before.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from .host import Flag

_READER_SECONDS = 0.3
"""How long the reader of a pipe has to get the same signal and to end by it."""
_DYING_SECONDS = 4.0
"""How long it has where it got the signal, as on a busy machine. Less than scripts' patience."""
_POLL_SECONDS = 0.05
_STANDARD = (1, 2)


@contextmanager
def preempted_by(
    flag: Flag,
    *signals: signal.Signals,
    on_signal: Callable[[signal.Signals], None] | None = None,
    patience: float | None = None,
) -> Iterator[None]:
    """Raise `flag` at each of `signals` while the body runs.

    - The previous handlers are restored at the end, unless the script has changed them. SIGINT is
      restored after the first one.
    - `on_signal` is called in the handler.
    - `patience`, in seconds: a signal that comes this long after the first is handled as before, if
      nothing has heeded the flag. A scheduler may send one signal twice at once, but a person who
      repeats it means it.
    - Outside of the main thread there are no signals to catch, and nothing is done.
    - Processes that are forked in the body, such as those of a data loader, inherit the handler.
      There it ignores SIGINT, as a terminal sends it to all of them, and lets the other signals end
      the process.
    - SIGTERM to all processes of a job also ends those that read the output, such as `tee`. The
      output goes elsewhere then, and not to a pipe that would end the script before it saves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pid = os.getpid()
    previous = {number: signal.getsignal(number) for number in signals}
    asked: list[float] = []

    def caught(number: int, frame: FrameType | None) -> None:
        if os.getpid() != pid:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        now = time.monotonic()
        asked.append(now)
        if patience is not None and not flag.heeded and now - asked[0] > patience:
            signal.signal(number, previous[signal.Signals(number)])
            os.kill(pid, number)
            return
        if number == signal.SIGINT:
            signal.signal(number, previous[signal.SIGINT])
        if number == signal.SIGTERM and len(asked) == 1:
            _keep_output()
            # A live pipe was waited for, and the patience begins after that.
            asked[0] = time.monotonic()
        flag.reason = signal.Signals(number).name
        flag.raised = True
        if on_signal is not None:
            on_signal(signal.Signals(number))

    for number in signals:
        signal.signal(number, caught)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is caught:
                signal.signal(number, handler)


def _keep_output() -> None:
    """Replace standard output and error where they are pipes without a reader.

    The rest of the output goes to the other one of the two, or to the output of the session's first
    process, which is the log of a run, or nowhere.
    """
    pipes, whole, broken = select.poll(), set[int](), set[int]()
    for fd in _STANDARD:
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                pipes.register(fd, 0)
                whole.add(fd)
    start = time.monotonic()
    while whole and (waited := time.monotonic() - start) < _DYING_SECONDS:
        if waited > _READER_SECONDS and not _is_sigterm_pending():
            break
        for fd, _ in pipes.poll(_POLL_SECONDS * 1000):
            pipes.unregister(fd)
            whole.discard(fd)
            broken.add(fd)
    for fd in sorted(broken):
        other = next((each for each in _STANDARD if each not in broken), None)
        with suppress(OSError):
            if other is not None:
                os.dup2(other, fd)
                continue
            log = _open_log()
            os.dup2(log, fd)
            os.close(log)


def _is_sigterm_pending() -> bool:
    """Return whether another process of this session got SIGTERM and has not handled it yet."""
    # Other systems than Linux have no such files.
    entries = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    for pid in map(int, filter(str.isdigit, entries)):
        with suppress(OSError):
            if pid == os.getpid() or os.getsid(pid) != os.getsid(0):
                continue
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            pending = int(status["ShdPnd"], 16) >> (signal.SIGTERM - 1) & 1
            if pending and not status["State"].startswith("Z"):
                return True
    return False


def _open_log() -> int:
    with suppress(OSError):
        # Another pipe without a reader is an error, and not waited for.
        log = f"/proc/{os.getsid(0)}/fd/1"
        opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        os.set_blocking(opened, True)
        return opened
    return os.open(os.devnull, os.O_WRONLY)
