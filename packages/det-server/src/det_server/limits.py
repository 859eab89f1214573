"""Limits how often a sign-in may fail, by name and by address."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address, ip_network

SECONDS = 300.0
BY_NAME, BY_ADDRESS = 10, 40
"""How many sign-ins for a name, and from an address, may fail in `SECONDS`."""
_MOST = 10_000
"""How many names and addresses are remembered. The oldest ones are forgotten first."""


class Attempts:
    """The sign-ins that have failed lately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def begin(self, name: str, address: str) -> float:
        """Count an attempt, and return 0. Returns the seconds to wait where there are too many."""
        keys = self._keys(name, address)
        with self._lock:
            now = time.monotonic()
            waits = [self._wait(key, most, now) for key, most in keys]
            if max(waits):
                return max(waits)
            for key, _ in keys:
                self._failed.setdefault(key, []).append(now)
                self._failed.move_to_end(key)
            while len(self._failed) > _MOST:
                self._failed.popitem(last=False)
        return 0.0

    def succeed(self, name: str, address: str) -> None:
        """Forget the attempts for a name, and the last one from an address."""
        with self._lock:
            (of_name, _), (of_address, _) = self._keys(name, address)
            self._failed.pop(of_name, None)
            if times := self._failed.get(of_address):
                times.pop()

    @staticmethod
    def _keys(name: str, address: str) -> tuple[tuple[tuple[str, str], int], ...]:
        # A name may have a MiB. Whoever has one IPv6 address has 2**64.
        digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()
        with suppress(ValueError):
            if (found := ip_address(address)).version == 6:
                address = str(ip_network((found, 64), strict=False))
        return (("name", digest), BY_NAME), (("address", address[:64]), BY_ADDRESS)

    def _wait(self, key: tuple[str, str], most: int, now: float) -> float:
        times = [each for each in self._failed.get(key, ()) if each > now - SECONDS]
        if key in self._failed:
            self._failed[key] = times
        return times[0] + SECONDS - now if len(times) >= most else 0.0
