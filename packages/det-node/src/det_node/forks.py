"""Tools for processes that fork others: they pass file descriptors, and keep memory shared."""

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
    """Send all of `data` over a Unix socket.

    A file descriptor, if one is given, is attached to the first byte. The receiver gets a duplicate
    of it. Raises OSError if the socket is closed.
    """
    sent = socket.send_fds(channel, [data], descriptor) if descriptor else 0
    channel.sendall(data[sent:])


class Given:
    """The descriptors received over a socket, in the order of the messages they came with."""

    def __init__(self) -> None:
        # None for a descriptor that was lost, as this process could open no more.
        self._waiting = deque[int | None]()

    def receive(self, channel: socket.socket) -> bytes:
        """Return received data, and keep the descriptor that came with it."""
        # recv_fds drops its flags in Python 3.11, so executed programs would inherit the
        # descriptors.
        data, found, flags, _ = channel.recvmsg(
            1 << 20, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC
        )
        self._waiting += [descriptor for *_, payload in found for descriptor in array("i", payload)]
        self._waiting += [None] * (not found and bool(flags & socket.MSG_CTRUNC))
        return data

    def first(self) -> int:
        """Return the oldest descriptor, which stays open. Raises OSError where it was lost."""
        if (descriptor := self._waiting[0]) is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return descriptor

    def close(self, most: int | None = None) -> None:
        """Close the oldest descriptors, by default all."""
        for _ in range(len(self._waiting) if most is None else most):
            if (descriptor := self._waiting.popleft()) is not None:
                os.close(descriptor)


class SharedPages:
    """Keeps memory shared between a process and its forks.

    Call `freeze` after imports and `refresh` before a fork. Call `find_huge_pages` and
    `collapse_next` before many
    forks.
    """

    def __init__(self) -> None:
        # Addresses of memory that `collapse_next` has still to collapse.
        self.uncollapsed: list[int] = []
        self._finalizers: list[Any] = []
        self._at_exit = getattr(weakref.finalize, "_exitfunc")  # noqa: B009 - typeshed hides it

    def freeze(self) -> None:
        """Exclude what has been imported from garbage collection and from the exit of forks."""
        gc.freeze()
        # This process finalizes it. Otherwise each fork would do so at its exit, which takes long.
        registry = getattr(weakref.finalize, "_registry")  # noqa: B009
        finalizers = [each for each in list(registry) if each.atexit]
        for each in finalizers:
            each.atexit = False
        self._finalizers += finalizers
        # The exit function looks at each finalizer. A fork that makes a new one registers it again.
        atexit.unregister(self._at_exit)
        setattr(weakref.finalize, "_registered_with_atexit", False)  # noqa: B010

    def refresh(self) -> None:
        """Collect new garbage, so that not every fork has to."""
        gc.collect(0)
        gc.freeze()

    def release(self) -> None:
        """Run the finalizers of what was imported at the end of this process, as no fork does."""
        for each in self._finalizers:
            each.atexit = True
        atexit.register(self._at_exit)

    def find_huge_pages(self) -> None:
        """Find private memory of this process that fits into huge pages."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            where, access, _, _, inode, *name = line.split(maxsplit=5)
            if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                begin, end = (int(address, 16) for address in where.split("-"))
                self.uncollapsed += range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE)

    def collapse_next(self) -> None:
        """Collapse pages into one huge page, where the kernel supports it.

        A fork then copies one page table entry in place of many, and drops it at its end.
        """
        address = ctypes.c_void_p(self.uncollapsed.pop())
        ctypes.CDLL(None).madvise(address, ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
