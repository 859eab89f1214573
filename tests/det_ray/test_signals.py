"""A driver on Ray keeps its own handler of SIGTERM."""

from __future__ import annotations

import ctypes
import importlib.util
import signal
import threading

import pytest

# Ray reads the token of the test clusters once, when it is imported: not in the collection.
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing")


@needs_ray
def test_a_handler_that_a_thread_replaces_in_c_is_put_back() -> None:
    """Ray replaces it with one that aborts the process three seconds after the signal."""
    from det_ray.cluster import _sigterm_kept

    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(1))

    def connect() -> None:
        with _sigterm_kept():
            put = ctypes.pythonapi.PyOS_setsig
            put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
            put(signal.SIGTERM, int(signal.SIG_IGN))

    try:
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [1]
