"""Handles signals that ask a run to end. The run ends between two batches.

A second Ctrl-C is handled as it was before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .host import Flag


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
