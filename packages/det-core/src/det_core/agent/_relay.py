"""Where workers find whom they talk to: their words are kept under their numbers until they are committed."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from .. import wire
from ..environ import shortened
from ..host import Outcome
from ..protocol import Answer, Finished, Meet, Preempt, Said, Welcome, decode_said, encode, greeted, refusal, welcome
from ._frames import RunSpec, Spoke

_HELLO_SECONDS = 30
_DRAIN_SECONDS = 2.0

Hears = Callable[[Spoke], None]


@dataclass
class _Link:
    """One worker: whose it is, its connection, and what it has said that is not taken."""

    run: int
    rank: int
    connection: wire.Connection
    kept: dict[int, Said] = field(default_factory=dict)
    asked: int = 0  # the number of its question where the ranks meet
    over: threading.Event = field(default_factory=threading.Event)


class Relay:
    """Listens for workers on `host`, and passes on what they say to whoever hears at the time.

    Each word is heard in order, and again from the first that was not taken by whoever hears next. Where the ranks of a run
    meet, which is nobody else's business unless some are elsewhere, it tells them itself. Workers prove a `key` of their run,
    which is made of this one.
    """

    def __init__(self, host: str = "127.0.0.1", hears: Hears | None = None, key: bytes = b"") -> None:
        self.key = key or secrets.token_bytes(32)
        self.alone: float | None = None
        """How many seconds a worker has to end when this is gone; by default as many as its configuration gives it."""
        self._lock = threading.RLock()
        self._links: dict[int, _Link] = {}
        self._meetings: dict[int, wire.Address] = {}  # of runs
        self._preempted: dict[int, str] = {}  # runs, and why
        self._parts: set[int] = set()  # runs that have ranks elsewhere
        self._newest = secrets.randbits(32) << 20  # no other one of the experiment's agents counts from there
        self._hears = hears
        self._server = wire.Server(self.key, self._serve, host=host)

    @property
    def address(self) -> wire.Address:
        """Where workers connect to."""
        return self._server.address

    def introduced(self, spec: RunSpec) -> RunSpec:
        """Return a run whose workers know where to connect, in variables that a process can be started with."""
        if spec.of:
            self._parts.add(spec.run_id)
        host, port = self.address
        door = {"DET_DRIVER": f"{host}:{port}", "DET_DRIVER_KEY": wire.run_key(self.key, spec.run_id).hex()}
        alone = {"DET_ALONE_SECONDS": f"{self.alone:g}"} if self.alone is not None else {}
        variables = shortened({**spec.variables, **door, **alone}, spec.log_dir)
        return msgspec.structs.replace(spec, variables=variables)

    def door(self, run: int) -> socket.socket:
        """Return the end of a connection for the only worker of a run, a fork; to come here and prove a key takes longer."""
        return self._server.give(run)

    def came(self, run: int) -> bool:
        """Tell whether a worker of a run has connected."""
        with self._lock:
            return any(link.run == run for link in self._links.values())

    def heard_by(self, hears: Hears, first: Callable[[], None]) -> None:
        """Pass words on to `hears` from now on; `first` is called when whoever heard before hears no more."""
        with self._lock:
            self._hears = hears
            first()
            for number, link in self._links.items():
                for said in link.kept.values():
                    hears(Spoke(link.run, link.rank, number, said))

    def unheard_by(self, hears: Hears) -> None:
        """Only keep words from now on, if it was `hears` that heard them."""
        with self._lock:
            if self._hears is hears:
                self._hears = None

    def drain(self, run: int) -> None:
        """Wait for the words of a run that has ended, which may be on their way; not for ever, as others may hold the socket."""
        with self._lock:
            links = [link for link in self._links.values() if link.run == run]
        for link in links:
            link.over.wait(_DRAIN_SECONDS)

    def answer(self, link: int, answer: Answer) -> None:
        """Answer a worker; one that is gone is heard of by its end."""
        with self._lock:
            if link in self._links:
                self.taken(link, answer.number)
                send(self._links[link].connection, answer)

    def preempt(self, run: int, reason: str) -> bool:
        """Ask the workers of a run, those too that are still to come, to save and end; tell whether any is there."""
        with self._lock:
            self._preempted[run] = reason
            links = [link for link in self._links.values() if link.run == run and not link.over.is_set()]
            for link in links:
                send(link.connection, Preempt(reason))
        return bool(links)

    def taken(self, link: int, number: int) -> None:
        """A worker's words up to this one need not be said again, but for what is asked for as long as it is there.

        That is its last, whose meaning is decided at its end, and where the ranks meet.
        """
        with self._lock:
            kept = self._links[link].kept if link in self._links else {}
            for each in [n for n, said in kept.items() if n <= number and not isinstance(said.word, (Finished, Meet))]:
                del kept[each]

    def forget(self, run: int) -> None:
        """The run has ended, and nobody asks for it any more."""
        with self._lock:
            for number in [number for number, link in self._links.items() if link.run == run]:
                self._links.pop(number).connection.close()
            self._meetings.pop(run, None)
            self._preempted.pop(run, None)
            self._parts.discard(run)

    def close(self) -> None:
        """Hear of nobody any more; workers find their connections closed."""
        self._server.close()

    def _serve(self, connection: wire.Connection) -> None:
        """Read one worker's words; runs in the connection's own thread."""
        try:
            ours = welcome()
            send(connection, ours)  # so that nobody waits for it
            hello = greeted(connection, None if connection.given else _HELLO_SECONDS)
            if hello is None:
                return
            refused = refusal(hello, ours)
            link = _Link(hello.run_id, hello.rank, connection)
            with self._lock:
                self._newest = number = self._newest + 1
                self._links[number] = link
                if link.run in self._preempted:
                    send(connection, Preempt(self._preempted[link.run]))
            if refused:
                self._keep(link, number, Said(1, Finished(Outcome.MISTAKE, refused)))
            else:
                self._listen(link, number)
        except (wire.ConnectionLost, TimeoutError, OSError, msgspec.DecodeError):
            connection.close()

    def _listen(self, link: _Link, number: int) -> None:
        try:
            while isinstance(said := decode_said(link.connection.recv()), Said):
                if isinstance(said.word, Meet) and link.run not in self._parts:
                    self._meet(link, said.number, said.word.address)
                else:
                    self._keep(link, number, said)
        finally:
            link.over.set()

    def _keep(self, link: _Link, number: int, said: Said) -> None:
        with self._lock:
            link.kept[said.number] = said
            if self._hears is not None:
                self._hears(Spoke(link.run, link.rank, number, said))

    def _meet(self, link: _Link, number: int, address: wire.Address | None) -> None:
        """Pass on where the ranks of a run meet; those that ask before it is known are told then."""
        with self._lock:
            if address is not None:
                self._meetings[link.run] = address
            link.asked = number
            waiting = [each for each in self._links.values() if each.run == link.run and each.asked]
            for each in waiting if link.run in self._meetings else ():
                send(each.connection, Answer(each.asked, address=self._meetings[link.run]))
                each.asked = 0


def send(connection: wire.Connection, reply: Answer | Preempt | Welcome) -> None:
    """Send to a worker; one that is gone is heard of by its end."""
    try:
        connection.send(encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()
