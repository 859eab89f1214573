"""Signals that ask a run to end: heeded between two batches; a second Ctrl-C takes its course."""

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
    """Raise `flag` at each of `signals`; at the end, or after one SIGINT, they are handled as before, unless the script changed it.

    `on_signal` is called in the handler. With `patience`, a signal that comes so many seconds after the first while nobody has
    heeded the flag is handled as before, too: a scheduler may send one twice at once, a person who sends it again means it.
    In a thread that is not the main one there are no signals to catch, and nothing is done. Processes that are forked
    meanwhile, such as those of a data loader, inherit a handler: it ignores SIGINT there, as a terminal sends it to all of
    them, and lets the others end them.
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
