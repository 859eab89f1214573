"""Horovod's rendezvous over Gloo, and the variables with which its ranks come to it."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from ..errors import DetError
from .base import Launcher, Layout


class Horovod(Launcher):
    """Ranks exchange their addresses over a server that this process runs, and then connect to one another."""

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[Sequence[Mapping[str, str]]]:
        if layout.size == 1:
            yield [{}]
            return
        if find_spec("horovod") is None:
            raise DetError("Horovod is not installed; run: det horovod install")
        slots = _assignments(layout)
        with _rendezvous(layout.here, slots) as port:
            yield [_variables(slot, layout, port) for slot in slots]


def _assignments(layout: Layout) -> list[Any]:
    """Return where Horovod sees each rank; it numbers hosts for each local rank anew."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments

    sizes = {place.host: place.ranks.local_size for place in layout.places}
    slots: list[Any] = get_host_assignments([HostInfo(host, size) for host, size in sizes.items()], layout.size)
    return slots


@contextmanager
def _rendezvous(address: str, slots: list[Any]) -> Iterator[int]:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address if _is_number(address) else "", 0), RendezvousHandler, 0)
    server.daemon_threads = True
    server.init(slots)
    thread = threading.Thread(target=server.serve_forever, name="det-horovod", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _variables(slot: Any, layout: Layout, port: int) -> dict[str, str]:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {
        **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in names},
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": layout.here,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(layout.start_timeout))),
    }


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
