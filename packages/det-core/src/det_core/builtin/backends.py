"""The backends that need no framework."""

from __future__ import annotations

from collections.abc import Iterator

from ..backend import Backend
from ..hookspecs import hookimpl
from ..records import BackendRecord


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="serial", load=_serial, priority=-1)
    yield BackendRecord(name="socket", load=_socket, priority=-1)


def _serial() -> type[Backend]:
    from ..backend import Serial

    return Serial


def _socket() -> type[Backend]:
    from ..backends.socket import Socket

    return Socket
