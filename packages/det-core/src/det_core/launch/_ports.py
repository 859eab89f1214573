"""Ports that are kept free for the ranks of a host."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from ..errors import DetError


@contextlib.contextmanager
def reserved(count: int, first: int | None) -> Iterator[list[int]]:
    """Keep ports from others, while ranks can still listen there: `count` from `first` on, or any that are free.

    A socket that is bound and does not listen keeps the system from giving the port to anybody who asks for no certain one;
    who asks for this one and sets SO_REUSEADDR, as servers do, gets it.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(_bound(0 if first is None else first + n)) for n in range(count)]
        yield [sock.getsockname()[1] for sock in sockets]


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("", port))
    except OSError as error:
        sock.close()
        raise DetError(f"port {port} cannot be used ({error.strerror}); give another --port") from error
    return sock
