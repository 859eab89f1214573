"""The agents of a launch: how they are started, ordered, and received from."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import socket
import subprocess
import time

import msgspec

from det_core.errors import DetError
from det_core.support.threads import start_thread

from .. import wire
from ..agent import (
    AgentEvent,
    AgentHello,
    AgentStart,
    Attach,
    Order,
    Outbox,
    PortsReserved,
    decode_agent_events,
    decode_agent_hello,
    encode_frame,
    encode_start,
)
from ..process import end_group
from ..protocol import welcome
from ._hosts import Host, agent_argv

_LAST_WORDS = 500
_STATUS_SECONDS = 5.0
# Another process may hold the command's standard error.
_SHOW_SECONDS = 0.5
_CHUNK = 1 << 12


class HostAgent:
    """Starts the agent of one host, and receives its messages in a thread.

    The thread puts them into `inbox`, each with this object, and waits where the inbox is full. An
    error follows when the connection has ended.
    """

    def __init__(
        self, host: Host, template: str, lease: float, inbox: queue.Queue[Received]
    ) -> None:
        self.host = host
        self.here: AgentHello | None = None
        self.reserved = PortsReserved()
        self.received_at = time.monotonic()
        """When the last message came, or infinity where one waits to be handled."""
        self._lease, self._inbox = lease, inbox
        self._outbox: Outbox | None = None
        self._sock, theirs = socket.socketpair()
        argv = agent_argv(host, template)
        try:
            with theirs:
                # It has its own session, as it has to outlive the launcher to end the ranks.
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            self._sock.close()
            raise DetError(
                f"cannot run {argv[0]!r} for the host {host.name!r}: {error.strerror}; see --agent"
            ) from error
        start = AgentStart(name="launch", key=wire.new_key().hex(), stdio=True)
        # The command may have ended, which is noticed on receiving.
        with contextlib.suppress(OSError):
            self._sock.sendall(encode_start(start) + b"\n")
        self._showing = start_thread(self._show, name="det-launch-show")
        start_thread(self._receive, name="det-launch-receive", failed=self._put)

    def order(self, order: Order) -> None:
        """Send an order. Does nothing where the agent has ended."""
        if self._outbox is not None:
            self._outbox.send(order)

    def hang_up(self) -> None:
        """Close the connection, so that the agent and its ranks end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def wait(self, deadline: float) -> None:
        """Wait for the agent until a time of the monotonic clock, then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            end_group(self._process.pid)
            self._process.wait()
        self._showing.join(min(_SHOW_SECONDS, max(0.0, deadline - time.monotonic())))

    def _show(self) -> None:
        """Show what the command says.

        ssh makes its standard error non-blocking. If the launcher shared it, output that is read
        slowly would be lost.
        """
        assert self._process.stderr
        with self._process.stderr as stderr, contextlib.suppress(OSError):
            while text := os.read(stderr.fileno(), _CHUNK):
                os.write(2, text)

    def _receive(self) -> None:
        try:
            with wire.through(self._sock) as connection:
                self._attach(connection)
                while True:
                    for event in decode_agent_events(connection.recv()):
                        self._put(event)
        except wire.NotReached as error:
            self._put(DetError(self._lost(error)))
        except (wire.ConnectionLost, OSError):
            self._put(DetError(self._lost()))
        except (DetError, msgspec.DecodeError) as error:
            self._put(error)

    def _attach(self, connection: wire.Connection) -> None:
        here, ours = decode_agent_hello(connection.recv()), welcome()
        if here.protocol != ours.protocol:
            raise DetError(
                f"the host {self.host.name!r} has det-node {here.version} (protocol"
                f" {here.protocol}), and this is {ours.version} (protocol {ours.protocol}); install"
                " the same version on every host"
            )
        connection.send(
            encode_frame(Attach(ours.protocol, ours.version, None, self._lease, fenced=True))
        )
        self._outbox = Outbox(connection)
        self._put(here)

    def _put(self, message: AgentHello | AgentEvent | BaseException) -> None:
        self.received_at = math.inf
        self._inbox.put((self, message))
        self.received_at = time.monotonic()

    def _lost(self, error: wire.NotReached | None = None) -> str:
        noise = (
            f"; it said: {error.noise.splitlines()[-1][:_LAST_WORDS]}"
            if error and error.noise
            else ""
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STATUS_SECONDS)
        self._showing.join(_SHOW_SECONDS)
        if (status := self._process.returncode) is None:
            return f"the process on the host {self.host.name!r} is none of det's: {error}{noise}"
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return (
            f"the process on the host {self.host.name!r} ended with {how}, and its ranks with"
            f" it{noise}"
        )


Received = tuple[HostAgent, AgentHello | AgentEvent | BaseException]
