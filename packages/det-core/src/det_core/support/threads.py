"""Starts the threads of det, so that their failures are known."""

from __future__ import annotations

import _thread
import errno
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Failed = Callable[[BaseException], object]


def start_thread(
    target: Callable[..., object], *arguments: Any, name: str, failed: Failed | None = None
) -> threading.Thread:
    """Start a daemon thread that calls `target(*arguments)`.

    An exception in it is printed, and `failed` is called with it, so that those that depend on the
    thread can end or find out. Raises OSError (EAGAIN) if the system has no more threads, as it
    does for processes.
    """
    thread = threading.Thread(
        target=_run, args=(target, arguments, name, failed), name=name, daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(error) from error
    return thread


def start_at_once(target: Callable[[], object], *, name: str, failed: Failed) -> None:
    """Start a thread, and do not wait until it runs, as `Thread.start` would.

    It cannot be joined.
    """
    try:
        _thread.start_new_thread(_run, (target, (), name, failed))
    except RuntimeError as error:
        raise no_thread(error) from error


def no_thread(error: RuntimeError) -> OSError:
    """Return the error for a process that may start no more threads."""
    return OSError(
        errno.EAGAIN,
        f"{error}: the machine is out of memory, or its user may have no more threads (ulimit -u)",
    )


def _run(
    target: Callable[..., object], arguments: tuple[Any, ...], name: str, failed: Failed | None
) -> None:
    try:
        target(*arguments)
    # A SystemExit, too, which `threading` drops silently.
    except BaseException as error:
        # The stream may be closed or broken.
        with suppress(OSError, ValueError):
            text = "".join(traceback.format_exception(error))
            sys.stderr.write(f"det: the thread {name} has failed:\n{text}")
            sys.stderr.flush()
        if failed is not None:
            failed(error)
