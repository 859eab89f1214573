"""How ranks on several hosts reach one another: addresses and network interfaces of this host."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def address_towards(host: str) -> str | None:
    """Return this machine's address on the route to a host, or None without a route."""
    with contextlib.suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            # Sends nothing. The kernel chooses the route.
            sock.connect(target)
            return str(sock.getsockname()[0])
    return None


def is_loopback(address: str) -> bool:
    """Return whether an address is on loopback."""
    if address in ("127.0.0.1", "localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def address_to_bind(address: str) -> str:
    """Return the address to listen on, where other machines reach this one at `address`.

    `DET_BIND_ADDRESS` replaces it, unless it is on loopback.
    """
    return address if is_loopback(address) else os.environ.get("DET_BIND_ADDRESS") or address


def interface_towards(host: str) -> str | None:
    """Return the network interface by which this machine reaches a host, such as eth0."""
    mine = address_towards(host)
    return (
        next((name for _, name in socket.if_nameindex() if mine in _addresses(name)), None)
        if mine
        else None
    )


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
