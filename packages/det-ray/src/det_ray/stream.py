"""The driver's end of the connections of agents: bytes that calls of an actor carry, so that nobody needs a way to the driver."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from .place import CHUNK, Opened

_PAUSE_SECONDS = 1.0


def carry(place: Any, driver: tuple[str, int], over: threading.Event, ended: Callable[[int | None, str], None]) -> None:
    """Connect an agent to its driver, and again whenever the connection is lost, until it is `over` or the agent has `ended`.

    One call of each direction is under way at a time: nothing comes out of order, and who is slow is waited for. `ended` is told
    the agent's status, None where its actor is gone without a word, and the last words.
    """
    while not over.is_set():
        try:
            opened: Opened = ray.get(place.open.remote())
            if opened.status is not None:
                ended(opened.status, opened.words)
                return
            if opened.stream:
                _carry(place, opened.stream, driver, over)
        except (ActorUnavailableError, OSError):
            over.wait(_PAUSE_SECONDS)
        except RayError as error:
            ended(None, str(error))
            return


def _carry(place: Any, stream: int, driver: tuple[str, int], over: threading.Event) -> None:
    with socket.create_connection(driver) as sock:
        back = threading.Thread(target=_back, args=(place, stream, sock), daemon=True, name="det-ray-back")
        back.start()
        try:
            while not over.is_set() and (data := ray.get(place.read.remote(stream))) != b"":
                sock.sendall(data or b"")
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            back.join()


def _back(place: Any, stream: int, sock: socket.socket) -> None:
    with suppress(RayError, OSError):
        while (data := sock.recv(CHUNK)) and ray.get(place.write.remote(stream, data)):
            continue
        ray.get(place.close.remote(stream))
