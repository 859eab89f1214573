"""What a process that forks others does for them: a page of its memory that either writes to is copied."""

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import os
import socket
import weakref
from array import array
from collections import deque
from pathlib import Path
from typing import Any

_HUGE = 1 << 21  # bytes of a huge page
_MADV_COLLAPSE = 25  # Linux 6.1


def send_with(channel: socket.socket, data: bytes, *descriptor: int) -> None:
    """Send data over a Unix socket, and with its first byte a descriptor."""
    sent = socket.send_fds(channel, [data], descriptor) if descriptor else 0
    channel.sendall(data[sent:])


class Given:
    """The descriptors that came over a socket, each for what came with it, in order."""

    def __init__(self) -> None:
        self._waiting = deque[int | None]()  # None for one that there was no room for here

    def receive(self, channel: socket.socket) -> bytes:
        """Return what came, and take what came with it."""
        # Not recv_fds, which lets whatever is executed inherit them: Python 3.11 forgets its flags.
        data, found, flags, _ = channel.recvmsg(1 << 20, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
        self._waiting += [descriptor for *_, payload in found for descriptor in array("i", payload)]
        self._waiting += [None] * (not found and bool(flags & socket.MSG_CTRUNC))
        return data

    def first(self) -> int:
        """Return the oldest, which stays open; OSError where there was no room for it."""
        if (descriptor := self._waiting[0]) is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return descriptor

    def close(self, most: int | None = None) -> None:
        """Close the oldest ones, by default all."""
        for _ in range(len(self._waiting) if most is None else most):
            if (descriptor := self._waiting.popleft()) is not None:
                os.close(descriptor)


class Shared:
    """For the process that forks: `settle` after imports, `refresh` before a fork, `scatter` and `gather` for many."""

    def __init__(self) -> None:
        self.scattered: list[int] = []  # addresses of memory that is to be gathered
        self._finalizers: list[Any] = []
        self._at_exit = getattr(weakref.finalize, "_exitfunc")  # noqa: B009 - typeshed hides it

    def settle(self) -> None:
        """Leave what has been imported alone: to the collector, and to forks that end."""
        gc.freeze()
        # It is this process's to finalize: each fork would take it down at its exit, at length.
        registry = getattr(weakref.finalize, "_registry")  # noqa: B009
        finalizers = [each for each in list(registry) if each.atexit]
        for each in finalizers:
            each.atexit = False
        self._finalizers += finalizers
        # That looks at each of them; a fork that makes one of its own registers it again.
        atexit.unregister(self._at_exit)
        setattr(weakref.finalize, "_registered_with_atexit", False)  # noqa: B010

    def refresh(self) -> None:
        """Collect what is new, which each fork would."""
        gc.collect(0)
        gc.freeze()

    def release(self) -> None:
        """Finalize at the end what was imported, as no fork does."""
        for each in self._finalizers:
            each.atexit = True
        atexit.register(self._at_exit)

    def scatter(self) -> None:
        """Find where this process has memory of its own that huge pages can hold."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            where, access, _, _, inode, *name = line.split(maxsplit=5)
            if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                begin, end = (int(address, 16) for address in where.split("-"))
                self.scattered += range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE)

    def gather(self) -> None:
        """Have one huge page hold what many hold, where the kernel can: a fork copies a line for each, and its end drops it."""
        address = ctypes.c_void_p(self.scattered.pop())
        ctypes.CDLL(None).madvise(address, ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
