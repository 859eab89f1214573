"""What a host's process tells the launcher on its standard output: frames of a kind, a rank and bytes."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

# A shell at the other end may greet before it starts what it is asked to: all that comes before this is such noise.
MAGIC = b"\x00det-host\x00\x01"
MAX_NOISE = 1 << 16
MAX_BODY = 1 << 20
_HEAD = struct.Struct("!BII")


class Kind(enum.IntEnum):
    """What a frame says."""

    READY = 1  # the host's ports, as JSON
    STARTED = 2  # a rank's process, in digits
    OUTPUT = 3  # what a rank wrote
    CAME = 4  # a rank has come to the meeting
    EXITED = 5  # how a rank ended, as JSON
    PROBLEM = 6  # why nothing was started, in a sentence
    END = 7  # all of the host's ranks have ended, and their output is told


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


class Decoder:
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
