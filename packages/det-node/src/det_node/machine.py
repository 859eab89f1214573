"""What this machine has: GPUs, an address for other machines, and reserved ports."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from det_core.errors import DetError
from det_core.ranks.network import address_towards


def address_for(host: str) -> str | None:
    """Return the address at which a host reaches this machine.

    This is `DET_ADDRESS`, else the address on the route to the host.
    """
    return given_address() or address_towards(host)


def given_address() -> str | None:
    """Return this machine's address for others as `DET_ADDRESS` gives it, or None."""
    return os.environ.get("DET_ADDRESS") or None


@contextlib.contextmanager
def reserved(count: int, first: int | None) -> Iterator[list[int]]:
    """Reserve `count` ports for ranks, from `first` on, or any free ones.

    A bound socket that does not listen keeps the kernel from giving its port to processes that ask
    for any port. A process that asks for this port with SO_REUSEADDR, as servers do, gets it.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for n, sock in enumerate(sockets):
            port = 0 if first is None else first + n
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("", port))
            except OSError as error:
                raise DetError(
                    f"port {port} cannot be used ({error.strerror}); give another --port"
                ) from error
        yield [sock.getsockname()[1] for sock in sockets]


def gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the GPUs in `CUDA_VISIBLE_DEVICES`, else of all NVIDIA GPUs."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(g.strip() for g in visible.split(",") if g.strip() and g.strip() != "-1")
    devices = Path("/proc/driver/nvidia/gpus")
    return tuple(str(i) for i in range(len(list(devices.iterdir())))) if devices.is_dir() else ()
