"""The driver's end of TCP relays for agents that cannot reach the driver.

Calls of a `det_node.agent.TcpRelay` carry the bytes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from det_core.support.threads import start_thread
from det_node.agent import CHUNK

_PAUSE_SECONDS = 1.0

Call = Callable[..., Any]
"""Calls a method of a ferry by its name.

ConnectionError: the ferry does not reply now. LookupError: it no longer exists.
"""


def relay_connection(
    call: Call,
    driver: tuple[str, int],
    over: threading.Event,
    ended: Callable[[int | None, str], None],
) -> None:
    """Connect an agent to its driver until `over` is set or the agent has ended.

    A lost connection is made again. At most one call of each direction is in flight: bytes keep
    their order, and a slow side slows the other. `ended` is called with the agent's exit status
    (None where the ferry is gone without a message) and its last output.
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
                _relay_stream(call, stream, driver, over)
        except OSError:
            over.wait(_PAUSE_SECONDS)
        except LookupError as error:
            ended(None, str(error))
            return


def _relay_stream(call: Call, stream: int, driver: tuple[str, int], over: threading.Event) -> None:
    with socket.create_connection(driver) as sock:
        back = start_thread(
            _relay_back,
            call,
            stream,
            sock,
            name="det-ferry",
            failed=lambda error: sock.shutdown(socket.SHUT_RDWR),
        )
        try:
            while not over.is_set() and (data := call("read", stream)) != b"":
                sock.sendall(data or b"")
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            back.join()


def _relay_back(call: Call, stream: int, sock: socket.socket) -> None:
    with suppress(LookupError, OSError):
        while (data := sock.recv(CHUNK)) and call("write", stream, data):
            continue
        call("close", stream)
