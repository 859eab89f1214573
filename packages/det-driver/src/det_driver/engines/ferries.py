"""The driver's end of the connections of agents that may not reach it: bytes that calls of a `det_core.agent.Ferry` carry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from det_core.agent import CHUNK

_PAUSE_SECONDS = 1.0

Call = Callable[..., Any]
"""Calls a method of a ferry, by its name; ConnectionError where that is silent for now, LookupError where it is gone for good."""


def carry(call: Call, driver: tuple[str, int], over: threading.Event, ended: Callable[[int | None, str], None]) -> None:
    """Connect an agent to its driver, and again whenever the connection is lost, until it is `over` or the agent has `ended`.

    One call of each direction is under way at a time: nothing comes out of order, and who is slow is waited for. `ended` is told
    the agent's status, None where its ferry is gone without a word, and the last words.
    """
    while not over.is_set():
        try:
            stream, status, words, direct = call("open", driver)
            if status is not None:
                ended(status, words)
                return
            while direct and not over.is_set() and call("read", stream) != b"":
                continue
            if stream and not direct:
                _carry(call, stream, driver, over)
        except OSError:
            over.wait(_PAUSE_SECONDS)
        except LookupError as error:
            ended(None, str(error))
            return


def _carry(call: Call, stream: int, driver: tuple[str, int], over: threading.Event) -> None:
    with socket.create_connection(driver) as sock:
        back = threading.Thread(target=_back, args=(call, stream, sock), daemon=True, name="det-ferry")
        back.start()
        try:
            while not over.is_set() and (data := call("read", stream)) != b"":
                sock.sendall(data or b"")
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            back.join()


def _back(call: Call, stream: int, sock: socket.socket) -> None:
    with suppress(LookupError, OSError):
        while (data := sock.recv(CHUNK)) and call("write", stream, data):
            continue
        call("close", stream)
