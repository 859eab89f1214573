"""A backend that needs no framework: every rank is connected to the chief.

Connections are authenticated, and use TLS where they leave the machine. Plain values and arrays are
not pickled (`_words`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from det_core.errors import DetError
from det_core.ranks.backend import CALL_SECONDS, START_SECONDS, Backend, Ranks, ranks_in

from ..wire import Address
from ._star import Meeting, Parts, Star, Verb
from ._words import decode_value, encode_value, join_frames, split_frames


class Socket(Backend):
    """Collectives of picklable objects over authenticated connections, in the shape of a star.

    - `chief`: where rank 0 listens and the others connect. On port 0 the chief takes a free one.
    - `key`: a secret that all ranks share, of 16 random bytes or more.
    - `ready`: the chief calls it with its address once it listens.
    - `start_timeout`: within how many seconds the ranks must meet.
    - `timeout`: within how many seconds of one another the ranks must call a collective.

    A rank that is gone or late raises RankLost on every other rank. Ranks that call different verbs
    raise RankError. Either is final. On several hosts, the ranks of one host form their own star,
    so that only they need to call a `_local` verb.

    Without `ranks`, everything comes from the variables that `det launch` sets, and a `timeout`
    that is not given from `DET_RANKS_TIMEOUT`.
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
            timeout = timeout or float(os.environ.get("DET_RANKS_TIMEOUT") or CALL_SECONDS)
        self.ranks = ranks
        self.chief_ip, self.timeout = chief[0], timeout
        self._ready = ready
        self._meeting = Meeting(
            address=chief, key=key, start_timeout=start_timeout, timeout=timeout or CALL_SECONDS
        )
        self._all: Star | None = None
        self._here: Star | None = None

    def init(self) -> None:
        if self._all is not None:
            return
        ranks = self.ranks
        self._all = Star.connect(
            ranks.rank, ranks.size, range(ranks.size), self._meeting, self._ready
        )
        try:
            self._here = self._all if ranks.cross_size == 1 else self._connect_host()
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

        result = self._world.exchange(Verb.AGREE, [bytes((flag,))], merge)
        return decision[0] if result is None else bool(result[0])

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

    def _connect_host(self) -> Star:
        """Meet the ranks of this host, at a port that the host's local rank 0 opens on loopback."""
        mine, places = self.ranks, [Ranks(**place) for place in self.allgather(vars(self.ranks))]
        names = [
            r.rank
            for r in sorted(places, key=lambda r: r.local_rank)
            if r.cross_rank == mine.cross_rank
        ]
        port = 0 if mine.local_rank == 0 else self.allgather(None)[names[0]]
        meeting = replace(self._meeting, address=("127.0.0.1", port))
        return Star.connect(
            mine.local_rank, mine.local_size, names, meeting, lambda at: self.allgather(at[1])
        )


def _launched(environ: Mapping[str, str]) -> tuple[Ranks, Address, bytes, float]:
    """Return the ranks, the chief, the key and the start timeout from `det launch socket`."""
    if "DET_RANKS_KEY" not in environ:
        raise DetError(
            "this process has no DET_RANKS_KEY; start it with: det launch socket -np 2 -- python3"
            " ..., or in an entrypoint: python3 -m det_node.launch.socket python3 ..."
        )
    chief = (environ["DET_CHIEF_IP"], int(environ["DET_CHIEF_PORT"]))
    return (
        ranks_in(environ),
        chief,
        bytes.fromhex(environ["DET_RANKS_KEY"]),
        float(environ.get("DET_START_TIMEOUT") or START_SECONDS),
    )


def _met(star: Star | None) -> Star:
    if star is None:
        raise RuntimeError("the ranks have not met; call init() first")
    return star


def _allgather(star: Star, value: Any) -> list[Any]:
    """Return the values of all ranks. The chief forwards them without decoding.

    A rank's own value is returned as the same object.
    """
    frames: list[memoryview] = []
    mine = encode_value(value)

    def merge(others: list[memoryview]) -> Parts:
        frames.extend(others)
        return join_frames([mine, *others])

    result = star.exchange(Verb.ALLGATHER, mine, merge)
    if result is None:
        return [value, *map(decode_value, frames)]
    return [
        value if rank == star.rank else decode_value(frame)
        for rank, frame in enumerate(split_frames(result))
    ]


def _gather(star: Star, value: Any) -> list[Any] | None:
    frames = star.gather(Verb.GATHER, encode_value(value) if star.rank else [])
    return None if frames is None else [value, *map(decode_value, frames)]


def _broadcast(star: Star, value: Any) -> Any:
    result = star.scatter(Verb.BROADCAST, encode_value(value) if star.rank == 0 else [])
    return value if result is None else decode_value(result)
