"""What this machine has: GPUs, ways to other machines, and ports that are kept free."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import DetError

_SIOCGIFADDR = 0x8915


def address_towards(host: str) -> str | None:
    """Return the address that this machine has for a host, None where no way leads there."""
    with contextlib.suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)  # sends nothing; the system chooses the way
            return str(sock.getsockname()[0])
    return None


def address_for(host: str) -> str | None:
    """Return the address at which a host reaches this machine: `DET_ADDRESS`, or that on the way to it."""
    return told_address() or address_towards(host)


def told_address() -> str | None:
    """Return what `DET_ADDRESS` says that this machine is to others."""
    return os.environ.get("DET_ADDRESS") or None


def is_loopback(address: str) -> bool:
    """Tell whether an address leads to the machine itself, whichever that is."""
    if address in ("127.0.0.1", "localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def address_to_bind(told: str) -> str:
    """Return the address to listen on for those who know this machine by another: that, unless `DET_BIND_ADDRESS` has one.

    What is for this machine alone stays on loopback.
    """
    return told if is_loopback(told) else os.environ.get("DET_BIND_ADDRESS") or told


def interface_towards(host: str) -> str | None:
    """Return the network interface by which this machine reaches a host, such as eth0."""
    mine = address_towards(host)
    return next((name for _, name in socket.if_nameindex() if mine in _addresses(name)), None) if mine else None


def _addresses(interface: str) -> set[str]:
    found = set()
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", interface.encode()[:15])
        found.add(socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if name == interface:
                found.add(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


@contextlib.contextmanager
def reserved(count: int, first: int | None) -> Iterator[list[int]]:
    """Keep ports from others, while ranks can still listen there: `count` from `first` on, or any that are free.

    A socket that is bound and does not listen keeps the system from giving the port to anybody who asks for no certain one;
    who asks for this one and sets SO_REUSEADDR, as servers do, gets it.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for n, sock in enumerate(sockets):
            port = 0 if first is None else first + n
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("", port))
            except OSError as error:
                raise DetError(f"port {port} cannot be used ({error.strerror}); give another --port") from error
        yield [sock.getsockname()[1] for sock in sockets]


def gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the GPUs that `CUDA_VISIBLE_DEVICES` lists, or of all that the NVIDIA driver has."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(g.strip() for g in visible.split(",") if g.strip() and g.strip() != "-1")
    devices = Path("/proc/driver/nvidia/gpus")
    return tuple(str(i) for i in range(len(list(devices.iterdir())))) if devices.is_dir() else ()
