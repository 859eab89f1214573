"""The endpoint of workers on their node. It keeps their messages until those are committed."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from det_core.support.threads import Failed
from det_core.train.environ import shortened
from det_core.train.host import Outcome

from .. import wire
from ..protocol import (
    Envelope,
    Finished,
    Hello,
    Meet,
    Preempt,
    Reply,
    Welcome,
    decode_envelope,
    encode,
    greeted,
    refusal,
    welcome,
)
from ._frames import RunSpec, WorkerMessage

_HELLO_SECONDS = 30
_DRAIN_SECONDS = 2.0

OnEvent = Callable[[WorkerMessage], None]


@dataclass
class _Link:
    """One worker: its run and rank, its connection, and its messages without an ack."""

    run: int
    rank: int
    connection: wire.Connection
    unacked: dict[int, Envelope] = field(default_factory=dict)
    # The number of its newest message.
    newest: int = 0
    # The number of its unanswered request for where the ranks meet, else 0.
    request: int = 0
    over: threading.Event = field(default_factory=threading.Event)


class Relay:
    """Listens for workers on `host`, and passes their messages on to `on_event`.

    Messages are passed on in order. The next subscriber gets them again from the first one without
    an ack. The relay itself replies where the ranks of a run meet, unless some of them are on other
    nodes. Workers prove a key of their run, which is derived from `key`. `failed` is called with
    the relay's own errors, and `unserved` with the run of a worker for which no thread can be
    started, before its connection is closed.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        on_event: OnEvent | None = None,
        key: bytes = b"",
        failed: Failed | None = None,
        unserved: Callable[[int, OSError], object] | None = None,
    ) -> None:
        self.key = key or secrets.token_bytes(32)
        self.orphan_seconds: float | None = None
        """How many seconds a worker has to end when the relay is gone, by default as configured."""
        self._lock = threading.RLock()
        self._links: dict[int, _Link] = {}
        # By run.
        self._chief_addresses: dict[int, wire.Address] = {}
        # The reason, by run.
        self._preempted: dict[int, str] = {}
        # Runs that have ranks on other nodes.
        self._split_runs: set[int] = set()
        # Starts at random, so that no other agent of the experiment uses the same numbers.
        self._newest = secrets.randbits(32) << 20
        self._on_event = on_event
        self._server = wire.Server(
            self.key, self._serve, host=host, failed=failed, unserved=unserved
        )

    @property
    def address(self) -> wire.Address:
        """The address that workers connect to."""
        return self._server.address

    def with_address(self, spec: RunSpec) -> RunSpec:
        """Return a run whose workers get the relay's address and their key in their variables.

        The variables are short enough to start a process with.
        """
        if spec.world_size:
            self._split_runs.add(spec.run_id)
        host, port = self.address
        endpoint = {
            "DET_DRIVER": f"{host}:{port}",
            "DET_DRIVER_KEY": wire.run_key(self.key, spec.run_id).hex(),
        }
        orphaned = (
            {"DET_ALONE_SECONDS": f"{self.orphan_seconds:g}"}
            if self.orphan_seconds is not None
            else {}
        )
        variables = shortened({**spec.variables, **endpoint, **orphaned}, spec.log_dir)
        return msgspec.structs.replace(spec, variables=variables)

    def connect_fork(self, run: int) -> socket.socket:
        """Return one end of a connection for the only worker of a run, which is a fork.

        That is faster than to connect and to prove a key.
        """
        return self._server.give(run)

    def has_connected(self, run: int) -> bool:
        """Return whether a worker of a run has connected."""
        with self._lock:
            return any(link.run == run for link in self._links.values())

    def subscribe(self, on_event: OnEvent, first: Callable[[], None]) -> None:
        """Subscribe `on_event` to messages, in place of the subscriber before.

        `first` is called when that one gets no more messages, and before `on_event` gets any.
        """
        with self._lock:
            self._on_event = on_event
            first()
            for number, link in self._links.items():
                for envelope in link.unacked.values():
                    on_event(WorkerMessage(link.run, link.rank, number, envelope))

    def unsubscribe(self, on_event: OnEvent) -> None:
        """Unsubscribe `on_event`, if it is still subscribed.

        Messages are only kept from then on.
        """
        with self._lock:
            if self._on_event is on_event:
                self._on_event = None

    def drain(self, run: int) -> None:
        """Wait for messages of a run that has ended, which may be on their way.

        The wait is bounded, as other processes may hold the socket.
        """
        with self._lock:
            links = [link for link in self._links.values() if link.run == run]
        for link in links:
            link.over.wait(_DRAIN_SECONDS)

    def reply(self, link: int, reply: Reply) -> None:
        """Send a reply to a worker. The end of a worker that is gone is reported elsewhere."""
        with self._lock:
            if link in self._links:
                self.acknowledge(link, reply.number)
                send(self._links[link].connection, reply)

    def preempt(self, run: int, reason: str) -> bool:
        """Ask the workers of a run to save and end, including those that have not connected yet.

        Return whether any is connected.
        """
        with self._lock:
            self._preempted[run] = reason
            links = [
                link for link in self._links.values() if link.run == run and not link.over.is_set()
            ]
            for link in links:
                send(link.connection, Preempt(reason))
        return bool(links)

    def acknowledge(self, link: int, number: int) -> None:
        """Drop a worker's messages up to this number, as they are committed.

        Two kinds of messages are kept as long as the worker is there: its last one, whose meaning
        is decided at its end, and the request for where the ranks meet.
        """
        with self._lock:
            unacked = self._links[link].unacked if link in self._links else {}
            for each in [
                n
                for n, envelope in unacked.items()
                if n <= number and not isinstance(envelope.message, (Finished, Meet))
            ]:
                del unacked[each]

    def release(self, run: int) -> None:
        """Drop all state of a run that has ended."""
        with self._lock:
            for number in [number for number, link in self._links.items() if link.run == run]:
                self._links.pop(number).connection.close()
            self._chief_addresses.pop(run, None)
            self._preempted.pop(run, None)
            self._split_runs.discard(run)

    def close(self) -> None:
        """Stop listening. Workers find their connections closed."""
        self._server.close()

    def _serve(self, connection: wire.Connection) -> None:
        """Read one worker's messages, in the connection's own thread."""
        try:
            ours = welcome()
            # The worker need not wait for it.
            send(connection, ours)
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
                self._receive(link, number, Envelope(1, Finished(Outcome.MISTAKE, refused)))
            else:
                self._listen(link, number)
        except (wire.ConnectionLost, TimeoutError, OSError, ValueError):
            connection.close()

    def _listen(self, link: _Link, number: int) -> None:
        try:
            while isinstance(envelope := self._read(link), Envelope):
                if isinstance(envelope.message, Meet) and link.run not in self._split_runs:
                    self._send_chief_address(link, envelope.number, envelope.message.address)
                else:
                    self._receive(link, number, envelope)
        finally:
            link.over.set()

    def _read(self, link: _Link) -> Hello | Envelope:
        """Return the next message of a worker.

        A message that cannot be decoded fails the worker's run. The connection stays open.
        """
        data = link.connection.recv()
        try:
            envelope = decode_envelope(data)
        except ValueError as error:
            # Text that is not UTF-8 raises a plain ValueError, not the DecodeError of msgspec.
            refused = (
                f"a message of rank {link.rank} cannot be read: {error}; install the same det"
                " for it"
            )
            envelope = Envelope(link.newest + 1, Finished(Outcome.MISTAKE, refused))
        if isinstance(envelope, Envelope):
            link.newest = envelope.number
        return envelope

    def _receive(self, link: _Link, number: int, envelope: Envelope) -> None:
        with self._lock:
            link.unacked[envelope.number] = envelope
            if self._on_event is not None:
                self._on_event(WorkerMessage(link.run, link.rank, number, envelope))

    def _send_chief_address(self, link: _Link, number: int, address: wire.Address | None) -> None:
        """Send the ranks of a run the address where they meet, once the chief has sent it."""
        with self._lock:
            if address is not None:
                self._chief_addresses[link.run] = address
            link.request = number
            waiting = [
                each for each in self._links.values() if each.run == link.run and each.request
            ]
            for each in waiting if link.run in self._chief_addresses else ():
                send(each.connection, Reply(each.request, address=self._chief_addresses[link.run]))
                each.request = 0


def send(connection: wire.Connection, reply: Reply | Preempt | Welcome) -> None:
    """Send to a worker. The end of a worker that is gone is reported elsewhere."""
    try:
        connection.send(encode(reply))
    except (wire.ConnectionLost, TimeoutError, OSError):
        connection.close()
