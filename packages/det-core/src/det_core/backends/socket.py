"""A backend that needs no framework: every rank is connected to the chief.

Python objects travel pickled, with the memory of arrays beside the pickle, so that it is not copied. Only what came over an
authenticated connection may be decoded, as unpickling runs code.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..backend import Backend, Ranks, ranks_in
from ..errors import DetError
from ..wire import Address
from ._star import Meeting, Parts, Star, Verb

START_SECONDS = 120.0
CALL_SECONDS = 1800.0
_SIZE = struct.Struct("!Q")


class Socket(Backend):
    """Collectives of picklable objects over authenticated connections, in the shape of a star.

    `chief` is where rank 0 listens and the others come to; `key` is a secret that all of them hold, 16 random bytes or
    more. On port 0 the chief takes one that is free; it calls `ready` with its address once it listens. The ranks must meet
    within `start_timeout` seconds, and come to each call within `timeout` seconds of one another. A rank that is gone or late
    is a RankLost on every other one; ranks that call different verbs get a RankError. Either is final. On several hosts, the
    ranks of one host are a star of their own, so that only they need to call a `_local` verb.

    Where no `ranks` are given, all but `timeout` is taken from the variables that `det launch socket` sets.
    """

    def __init__(
        self,
        ranks: Ranks | None = None,
        *,
        chief: Address = ("", 0),
        key: bytes = b"",
        start_timeout: float = START_SECONDS,
        timeout: float | None = None,
        ready: Callable[[Address], object] = lambda address: None,
    ) -> None:
        if ranks is None:
            ranks, chief, key, start_timeout = _launched(os.environ)
        self.ranks = ranks
        self.chief_ip, self.timeout = chief[0], timeout
        self._ready = ready
        self._meeting = Meeting(address=chief, key=key, start_timeout=start_timeout, timeout=timeout or CALL_SECONDS)
        self._all: Star | None = None
        self._here: Star | None = None

    def init(self) -> None:
        if self._all is not None:
            return
        ranks = self.ranks
        self._all = Star.meet(ranks.rank, ranks.size, range(ranks.size), self._meeting, self._ready)
        try:
            self._here = self._all if ranks.cross_size == 1 else self._meet_here()
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        for star in (self._here, self._all):
            if star is not None:
                star.close()

    def barrier(self) -> None:
        self._world.exchange(Verb.BARRIER, [], lambda frames: [])

    def agree(self, flag: bool) -> bool:
        decision: list[bool] = []

        def merge(frames: list[memoryview]) -> Parts:
            decision.append(flag or any(frame[0] for frame in frames))
            return [bytes(decision)]

        answer = self._world.exchange(Verb.AGREE, [bytes((flag,))], merge)
        return decision[0] if answer is None else bool(answer[0])

    def allgather(self, value: Any) -> list[Any]:
        return _allgather(self._world, value)

    def gather(self, value: Any) -> list[Any] | None:
        return _gather(self._world, value)

    def broadcast(self, value: Any) -> Any:
        return _broadcast(self._world, value)

    def allgather_local(self, value: Any) -> list[Any]:
        return _allgather(self._host, value)

    def gather_local(self, value: Any) -> list[Any] | None:
        return _gather(self._host, value)

    def broadcast_local(self, value: Any) -> Any:
        return _broadcast(self._host, value)

    @property
    def _world(self) -> Star:
        return _met(self._all)

    @property
    def _host(self) -> Star:
        return _met(self._here)

    def _meet_here(self) -> Star:
        """Meet the ranks of this host, at a port that their chief opens on loopback."""
        mine, places = self.ranks, self.allgather(self.ranks)
        names = [r.rank for r in sorted(places, key=lambda r: r.local_rank) if r.cross_rank == mine.cross_rank]
        port = 0 if mine.local_rank == 0 else self.allgather(None)[names[0]]
        meeting = replace(self._meeting, address=("127.0.0.1", port))
        return Star.meet(mine.local_rank, mine.local_size, names, meeting, lambda at: self.allgather(at[1]))


def _launched(environ: Mapping[str, str]) -> tuple[Ranks, Address, bytes, float]:
    """Return the ranks, the chief, the key and the time to meet that `det launch socket` tells."""
    if "DET_RANKS_KEY" not in environ:
        raise DetError(
            "this process has no DET_RANKS_KEY; start it with: det launch socket -np 2 -- python3 ..., or in an entrypoint: "
            "python3 -m det_core.launch.socket python3 ..."
        )
    chief = (environ["DET_CHIEF_IP"], int(environ["DET_CHIEF_PORT"]))
    return ranks_in(environ), chief, bytes.fromhex(environ["DET_RANKS_KEY"]), float(environ["DET_START_TIMEOUT"])


def _met(star: Star | None) -> Star:
    if star is None:
        raise RuntimeError("the ranks have not met; call init() first")
    return star


def _allgather(star: Star, value: Any) -> list[Any]:
    """Give the chief's pickles to all, untouched: only their own are not unpickled."""
    frames: list[memoryview] = []
    mine = _encode(value)

    def merge(others: list[memoryview]) -> Parts:
        frames.extend(others)
        return _join_frames([mine, *others])

    answer = star.exchange(Verb.ALLGATHER, mine, merge)
    if answer is None:
        return [value, *map(_decode, frames)]
    return [value if rank == star.rank else _decode(frame) for rank, frame in enumerate(_split_frames(answer))]


def _gather(star: Star, value: Any) -> list[Any] | None:
    frames = star.gather(Verb.GATHER, _encode(value) if star.rank else [])
    return None if frames is None else [value, *map(_decode, frames)]


def _broadcast(star: Star, value: Any) -> Any:
    answer = star.scatter(Verb.BROADCAST, _encode(value) if star.rank == 0 else [])
    return value if answer is None else _decode(answer)


def _encode(value: Any) -> Parts:
    """Return an object as parts, whose concatenation `_decode` understands: the memory of its arrays, and the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return _join_frames([*(buffer.raw() for buffer in buffers), [data]])


def _decode(data: memoryview) -> Any:
    """Return the object; its arrays lie in `data`, and can be written where that can."""
    *buffers, pickled = _split_frames(data)
    return pickle.loads(pickled, buffers=buffers)


def _join_frames(frames: Sequence[Parts | memoryview]) -> Parts:
    """Return frames as parts of one, which `_split_frames` takes apart."""
    parts: Parts = [_SIZE.pack(len(frames))]
    for frame in frames:
        pieces: Parts = [frame] if isinstance(frame, memoryview) else frame
        parts.append(_SIZE.pack(sum(map(len, pieces))))
        parts.extend(pieces)
    return parts


def _split_frames(data: memoryview) -> list[memoryview]:
    """Take apart what `_join_frames` put together."""
    (count,) = _SIZE.unpack_from(data)
    frames, at = [], _SIZE.size
    for _ in range(count):
        (length,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        frames.append(data[at : at + length])
        at += length
    return frames
