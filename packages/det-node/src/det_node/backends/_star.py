"""A group of ranks that are all connected to the chief."""

from __future__ import annotations

import contextlib
import enum
import queue
import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from det_core.ranks.backend import RankLost

from ..wire import LOOK_SECONDS, Address, Connection, ConnectionLost, KeyRefused, Server, connect

Parts = list[bytes | memoryview]

# The ranks of a run trust one another, and may exchange whole models.
MAX_FRAME = 1 << 40
# A rank waits longer than the chief, which knows better which rank is missing.
_GRACE_SECONDS = 5.0
_HELLO = struct.Struct("!II")
# The verb, the rank (of a failure), and the collective's number.
_HEAD = struct.Struct("!BxxxIQ")


class Verb(enum.IntEnum):
    """The collective that a rank calls.

    It is sent along, so that ranks that are out of step notice.
    """

    INIT = 0
    BARRIER = 1
    ALLGATHER = 2
    BROADCAST = 3
    GATHER = 4
    AGREE = 5
    LOST = 6
    ERROR = 7


class RankError(RuntimeError):
    """The ranks do not fit together.

    They call different collectives, or one of them was started twice or with another world size.
    """


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where and how the ranks of a group meet. Times are in seconds."""

    address: Address
    key: bytes
    start_timeout: float
    timeout: float


@dataclass
class Star:
    """One rank's end of the group. `names` are the ranks' numbers in the run, for messages."""

    rank: int
    size: int
    names: Sequence[int]
    timeout: float
    links: dict[int, Connection] = field(default_factory=dict)
    _count: int = 0
    _failure: Exception | None = None

    # Meeting

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        names: Sequence[int],
        meeting: Meeting,
        ready: Callable[[Address], object],
    ) -> Star:
        """Connect to the chief, which may not listen yet, or wait for the others as the chief.

        `ready` is called with the chief's address once it listens. Raises DetError where the chief
        cannot listen, and RankLost where a rank does not come in time.
        """
        star = cls(rank, size, names, meeting.timeout)
        try:
            if rank:
                star._join(meeting)
            elif size == 1:
                # No rank to wait for, and no port to open.
                ready(meeting.address)
            else:
                star._host(meeting, ready)
        except BaseException:
            star.close()
            raise
        return star

    def _host(self, meeting: Meeting, ready: Callable[[Address], object]) -> None:
        arrivals: queue.SimpleQueue[tuple[int, Connection]] = queue.SimpleQueue()
        host, port = meeting.address
        with Server(
            meeting.key, lambda link: self._greet(link, arrivals), host, port, max_frame=MAX_FRAME
        ) as server:
            ready(server.address)
            self._await(arrivals, server.address, meeting.start_timeout)

    def _join(self, meeting: Meeting) -> None:
        self.timeout = meeting.start_timeout + _GRACE_SECONDS
        self.links[0] = _reach(meeting, self.names[0])
        deadline = time.monotonic() + self.timeout
        self._send(Verb.INIT, 0, deadline, _HELLO.pack(self.rank, self.size))
        self._take(Verb.INIT, 0, deadline)
        self.timeout = meeting.timeout

    def _greet(self, link: Connection, arrivals: queue.SimpleQueue[tuple[int, Connection]]) -> None:
        """Check the first message of a rank, in the connection's own thread."""
        hello = link.recv(timeout=10)
        rank, size = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (0, 0)
        problem = ""
        if size != self.size:
            problem = (
                f"rank {rank} was started as one of {size}, but the chief as one of {self.size}"
            )
        elif not 0 < rank < size:
            problem = f"a rank came as number {rank} of {size}; give numbers from 0 to {size - 1}"
        elif self.links.setdefault(rank, link) is not link:
            problem = f"rank {rank} was started twice"
        if problem:
            link.send(_HEAD.pack(Verb.ERROR, 0, 0), problem.encode())
            return
        link.detached = True
        arrivals.put((rank, link))

    def _await(
        self, arrivals: queue.SimpleQueue[tuple[int, Connection]], address: Address, patience: float
    ) -> None:
        deadline = time.monotonic() + patience
        for _ in range(1, self.size):
            try:
                arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = [
                    self.names[rank] for rank in range(1, self.size) if rank not in self.links
                ]
                message = (
                    f"{_ranks(missing)} of {self.size} did not come to {address[0]}:{address[1]}"
                    f" within {patience:g} s"
                )
                raise self._fail(
                    RankLost(missing[0], f"{message}; see why it did not start")
                ) from None
        self._spread(Verb.INIT, time.monotonic() + patience)

    # Collectives. Each takes and returns parts of bytes

    def gather(self, verb: Verb, parts: Parts) -> list[memoryview] | None:
        """Return on the chief what each other rank sent, by rank.

        The others do not wait for a reply.
        """
        self._begin()
        if self.rank == 0:
            return self._collect(verb)
        self._offer(verb, parts)
        return None

    def scatter(self, verb: Verb, parts: Parts) -> memoryview | None:
        """Send the chief's parts to the others. Return them there, and None on the chief."""
        self._begin()
        if self.rank == 0:
            self._spread(verb, time.monotonic() + self.timeout, *parts)
            return None
        return self._take(verb, 0, time.monotonic() + self.timeout + _GRACE_SECONDS)

    def exchange(
        self, verb: Verb, parts: Parts, merge: Callable[[list[memoryview]], Parts]
    ) -> memoryview | None:
        """Collect what the others sent, and send them what `merge` makes of it on the chief.

        Return the merged bytes on the others, and None on the chief.
        """
        self._begin()
        if self.rank == 0:
            merged = merge(self._collect(verb))
            self._spread(verb, time.monotonic() + self.timeout, *merged)
            return None
        self._offer(verb, parts)
        return self._take(verb, 0, time.monotonic() + self.timeout + _GRACE_SECONDS)

    def close(self) -> None:
        """Leave the group. May be called twice."""
        self._failure = self._failure or RankError(
            "this rank has left the others; make a new DistributedContext"
        )
        for link in list(self.links.values()):
            link.close()

    # Inside

    def _begin(self) -> None:
        if self._failure:
            raise self._failure
        self._count += 1

    def _collect(self, verb: Verb) -> list[memoryview]:
        """Receive one frame from each other rank, in any order."""
        deadline = time.monotonic() + self.timeout
        if self.size == 2:
            return [self._take(verb, 1, deadline)]
        poll, waiting = select.poll(), {link.fileno(): rank for rank, link in self.links.items()}
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        frames: dict[int, memoryview] = {}
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(verb, [self.names[rank] for rank in waiting.values()])
            ready = poll.poll(min(left, LOOK_SECONDS) * 1000)
            for rank in () if ready else waiting.values():
                with self._link(verb, rank) as link:
                    link.heed()
            for descriptor, _ in ready:
                poll.unregister(descriptor)
                rank = waiting.pop(descriptor)
                frames[rank] = self._take(verb, rank, deadline)
        return [frames[rank] for rank in range(1, self.size)]

    def _offer(self, verb: Verb, parts: Parts) -> None:
        """Send parts to the chief, unless it has reported a failure."""
        deadline = time.monotonic() + self.timeout
        if self.links[0].waiting:
            self._take(verb, 0, deadline)
        self._send(verb, 0, deadline, self._head(verb), *parts)

    def _spread(self, verb: Verb, deadline: float, *parts: bytes | memoryview) -> None:
        head = self._head(verb)
        for rank in self.links:
            self._send(verb, rank, deadline, head, *parts)

    def _head(self, verb: Verb) -> bytes:
        return _HEAD.pack(verb, 0, self._count)

    def _send(self, verb: Verb, rank: int, deadline: float, *parts: bytes | memoryview) -> None:
        with self._link(verb, rank) as link:
            link.send(*parts, timeout=deadline - time.monotonic())

    def _take(self, verb: Verb, rank: int, deadline: float) -> memoryview:
        with self._link(verb, rank) as link:
            frame = link.recv_buffer(deadline - time.monotonic())
        theirs, lost, count = _HEAD.unpack_from(frame)
        body = memoryview(frame)[_HEAD.size :]
        if theirs == verb and count == self._count:
            return body
        if theirs == Verb.LOST:
            raise self._fail(RankLost(lost, str(body, "utf-8")))
        if theirs == Verb.ERROR:
            raise self._fail(RankError(str(body, "utf-8")))
        raise self._fail(
            RankError(
                f"rank {self.names[rank]} called {Verb(theirs).name.lower()} where rank"
                f" {self.names[self.rank]} called {verb.name.lower()}; call the same collectives in"
                " the same order on every rank"
            )
        )

    # Failures. The chief reports them to the others, so that each names the rank that failed first

    @contextlib.contextmanager
    def _link(self, verb: Verb, rank: int) -> Iterator[Connection]:
        """Yield the connection to a rank.

        Raise an error that names the rank where the connection fails.
        """
        name, mine = self.names[rank], self.names[self.rank]
        try:
            yield self.links[rank]
        except TimeoutError:
            raise self._late(verb, [name]) from None
        except ConnectionLost as error:
            message = (
                f"rank {name} is gone, as rank {mine} found in {verb.name.lower()}; see its output"
                f" ({error})"
            )
            raise self._fail(RankLost(name, message)) from error

    def _late(self, verb: Verb, ranks: list[int]) -> Exception:
        call = (
            f"{_ranks(ranks)} did not call {verb.name.lower()} within {self.timeout:g} s of rank"
            f" {self.names[self.rank]}"
        )
        return self._fail(
            RankLost(ranks[0], f"{call}; see what it is doing, or give a longer timeout")
        )

    def _fail(self, error: RankLost | RankError) -> Exception:
        """Store the failure, which is final, and report it to the others."""
        if self._failure is None:
            self._failure = error
            head = (
                _HEAD.pack(Verb.LOST, error.rank, 0)
                if isinstance(error, RankLost)
                else _HEAD.pack(Verb.ERROR, 0, 0)
            )
            for link in list(self.links.values()):
                with contextlib.suppress(ConnectionLost, TimeoutError):
                    link.send(head, str(error).encode(), timeout=1.0)
        return error


def _reach(meeting: Meeting, chief: int) -> Connection:
    """Connect to the chief, and retry until it listens."""
    deadline, pause = time.monotonic() + meeting.start_timeout, 0.01
    while True:
        try:
            left = max(0.01, deadline - time.monotonic())
            return connect(meeting.address, meeting.key, min(left, 10.0), max_frame=MAX_FRAME)
        except KeyRefused:
            raise
        except (ConnectionLost, TimeoutError) as error:
            if time.monotonic() + pause > deadline:
                raise RankLost(
                    chief,
                    f"rank {chief} was not reached within {meeting.start_timeout:g} s: {error}; see"
                    " why it did not start",
                ) from error
        time.sleep(pause)
        pause = min(0.25, pause * 1.5)


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
