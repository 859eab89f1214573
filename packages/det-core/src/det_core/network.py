"""By which way this machine reaches others."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR = 0x8915


def address_towards(host: str) -> str | None:
    """Return the address that this machine has for a host, None where no way leads there."""
    with suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)  # sends nothing; the system chooses the way
            return str(sock.getsockname()[0])
    return None


def interface_towards(host: str) -> str | None:
    """Return the network interface by which this machine reaches a host, such as eth0."""
    mine = address_towards(host)
    return next((name for _, name in socket.if_nameindex() if mine in _addresses(name)), None) if mine else None


def _addresses(interface: str) -> set[str]:
    found = set()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", interface.encode()[:15])
        found.add(socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]))
    with suppress(OSError):
        for line in Path("/proc/self/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if name == interface:
                found.add(str(ipaddress.IPv6Address(int(digits, 16))))
    return found
