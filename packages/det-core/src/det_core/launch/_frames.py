"""What the launcher and a host's process say to one another: lines of JSON one way, frames with a rank and bytes the other."""

from __future__ import annotations

import enum
import os
import queue
import struct
import threading
from dataclasses import dataclass

# A shell at the other end may greet before it starts what it is asked to: all that comes before this is such noise.
MAGIC = b"\x00det-host\x00\x01"
MAX_NOISE = 1 << 16
MAX_BODY = 1 << 20
_HEAD = struct.Struct("!BII")
CHUNK = 1 << 16
BEAT_SECONDS = 5.0
_CHUNKS_AHEAD = 64


class Kind(enum.IntEnum):
    """What a frame says."""

    READY = 1  # the host's ports, as JSON
    OUTPUT = 2  # what a rank wrote
    CAME = 3  # a rank has come to the meeting
    EXITED = 4  # how a rank ended, as JSON
    PROBLEM = 5  # why nothing was started, in a sentence
    END = 6  # all of the host's ranks have ended, and their output is told
    BEAT = 7  # the host is there


class FrameError(ValueError):
    """What came is not what a host's process says."""


@dataclass(frozen=True)
class Frame:
    """One message; `rank` is 0 where it is about none."""

    kind: Kind
    rank: int
    body: bytes


def encode(kind: Kind, rank: int = 0, body: bytes = b"") -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(kind, rank, len(body)) + body


class FrameDecoder:
    """Takes bytes as they come; `noise` is what came before the first frame."""

    def __init__(self) -> None:
        self.noise = b""
        self._data = bytearray()
        self._begun = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now; raises FrameError where there is something else."""
        self._data += data
        if not self._begun and not self._begin():
            return []
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _begin(self) -> bool:
        at = self._data.find(MAGIC)
        if at < 0:
            self.noise = bytes(self._data[-MAX_NOISE:])
            if len(self._data) > MAX_NOISE:
                raise FrameError("it did not start det")
            return False
        self.noise = bytes(self._data[:at])
        del self._data[: at + len(MAGIC)]
        self._begun = True
        return True

    def _next(self) -> Frame | None:
        if len(self._data) < _HEAD.size:
            return None
        kind, rank, size = _HEAD.unpack_from(self._data)
        if kind not in Kind.__members__.values() or size > MAX_BODY:
            raise FrameError(f"it sent a frame of kind {kind} with {size} bytes, which det does not")
        end = _HEAD.size + size
        if len(self._data) < end:
            return None
        body = bytes(self._data[_HEAD.size : end])
        del self._data[:end]
        return Frame(Kind(kind), rank, body)


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
