"""How a host's process hears and speaks."""

from __future__ import annotations

import json
import os
import queue
import select
import threading
from typing import Any

from ._frames import MAGIC, Kind, encode

CHUNK = 1 << 16
_CHUNKS_AHEAD = 64


class Lines:
    """Lines of JSON from a descriptor; waiting for one ends, too, when the other descriptor becomes readable."""

    def __init__(self, fd: int) -> None:
        self._fd, self._data = fd, b""

    def next(self, over: int | None = None) -> dict[str, Any] | None:
        """Return the next line, None at the end."""
        while b"\n" not in self._data:
            ready, _, _ = select.select([self._fd] if over is None else [self._fd, over], [], [])
            if over in ready:
                return None
            data = os.read(self._fd, CHUNK)
            if not data:
                return None
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class Teller:
    """Writes frames in a thread of its own, so that a launcher that does not read delays nothing but the ranks' output."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ahead = threading.Semaphore(_CHUNKS_AHEAD)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._frames.put(MAGIC)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def __call__(self, kind: Kind, rank: int = 0, body: bytes = b"") -> None:
        self._frames.put(encode(kind, rank, body))

    def output(self, rank: int, data: bytes) -> None:
        self._ahead.acquire()
        self(Kind.OUTPUT, rank, data)

    def close(self) -> None:
        self._frames.put(None)
        self._thread.join()

    def _write(self) -> None:
        there = True
        while (frame := self._frames.get()) is not None:
            view = memoryview(frame)
            while there and view:
                try:
                    view = view[os.write(self._fd, view) :]
                except OSError:  # the launcher is gone; what is asked of this process is to end the ranks
                    there = False
            if frame[:1] == bytes([Kind.OUTPUT]):
                self._ahead.release()
