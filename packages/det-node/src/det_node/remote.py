"""The driver, as a worker sees it across a connection."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from det_core.checkpoint.manifest import Manifest
from det_core.errors import DetError
from det_core.support.origin import origin
from det_core.support.threads import start_at_once, start_thread
from det_core.train.environ import WorkerEnv
from det_core.train.host import DriverHost, Flag, HostLost, Outcome, Target
from det_core.train.run_setup import spool

from . import wire
from .protocol import (
    Alerted,
    AskBest,
    AskTarget,
    BackendChosen,
    Checkpointed,
    Completed,
    Deleted,
    Envelope,
    Finished,
    Meet,
    Message,
    Origin,
    Preempt,
    Progressed,
    Reply,
    Reported,
    Request,
    Status,
    TrialNotice,
    Validated,
    decode_driver_message,
    decode_envelope,
    decode_welcome,
    encode,
    hello,
    refusal,
)

_CONNECT_SECONDS = 60.0
LOST = "the driver is gone"
_CLOSED = "the connection to the driver is closed; report before core.Context is left"


class RemoteHost(DriverHost):
    """Sends requests and events over a connection. A thread receives replies and preemptions.

    When the connection breaks, `preempted` is raised, `on_lost` is called in that thread, and every
    method raises HostLost from then on. `target` is the first one, where it is known. With
    `unrecorded`, `checkpointed` does not wait for its reply where a request follows. If the
    connection breaks before that reply, `unrecorded` is called in the thread with the checkpoint.
    """

    def __init__(
        self,
        connection: wire.Connection,
        on_lost: Callable[[], None] | None = None,
        target: Target | None = None,
        unrecorded: Callable[[Manifest, str], None] | None = None,
    ) -> None:
        self.preempted = Flag()
        self._on_lost, self._known, self._unrecorded = on_lost, target, unrecorded
        # The number, manifest and storage of a checkpoint whose reply is not awaited, and that
        # reply's error.
        self._unsure: tuple[int, Manifest, str] | None = None
        self._error = ""
        self._closing = False
        self._connection, self._pid = connection, os.getpid()
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        # The newest sequence number.
        self._number = 0
        self._lost = False
        # Held by the receiving thread.
        self._over = threading.Lock()
        self._over.acquire()
        start_at_once(self._listen, name="det-host", failed=lambda error: self._handle_lost())

    def target(self) -> Target:
        known, self._known = self._known, None
        return known or self._read_target(self._request(AskTarget()))

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._send(Reported(group, batches, dict(metrics)))

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        return self._read_target(self._request(Validated(batches, dict(metrics), length)))

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        return self._read_target(self._request(Completed(batches, dict(metrics), length)))

    def deleted(self, uuid: str) -> None:
        self._request(Deleted(uuid))

    def checkpointed(self, manifest: Manifest, storage: str) -> bool:
        if self._unrecorded is None or not self.asks_next:
            self._request(Checkpointed(manifest, storage))
            return True
        with self._lock:
            self._unsure = self._number + 1, manifest, storage
            self._send(Checkpointed(manifest, storage))
        return False

    def report_at(
        self, fraction: float, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        self._send(Reported(group, batches, dict(metrics), fraction))

    def progress(self, fraction: float) -> None:
        self._send(Progressed(fraction))

    def status(self, text: str) -> None:
        self._send(Status(text))

    def notice(self, text: str) -> None:
        self._send(TrialNotice(text))

    def alert(self, title: str, description: str, level: str) -> None:
        self._send(Alerted(title, description, level))

    def finished(
        self,
        outcome: Outcome,
        message: str = "",
        traceback: str = "",
        *,
        wait: bool = True,
        own_handler: bool = False,
        uncaught: bool = False,
        status: int = 0,
    ) -> None:
        (self._request if wait else self._send)(
            Finished(
                outcome,
                message,
                traceback,
                own_handler=own_handler,
                preempted=self.preempted.raised,
                uncaught=uncaught,
                status=status,
            )
        )

    def exchange_chief_address(
        self, address: tuple[str, int] | None = None, timeout: float | None = None
    ) -> tuple[str, int]:
        """Send where the ranks of the run meet, as their chief, or wait for the address.

        Raises TimeoutError after `timeout` seconds.
        """
        meeting = self._request(Meet(address), timeout).address
        assert meeting is not None
        return meeting

    def chose(self, backend: str) -> None:
        """Report which backend reduces the gradients."""
        self._send(BackendChosen(backend))

    def report_origin(self, origin: dict[str, Any]) -> None:
        """Report the interpreter and machine of the run."""
        self._send(Origin(origin))

    def best_validation(self) -> float | None:
        return self._request(AskBest()).value

    def close(self) -> None:
        if os.getpid() != self._pid:
            self._connection.close_inherited()
            return
        self._closing = True
        self._connection.close()
        if self._over.acquire(timeout=5):
            self._over.release()

    def _read_target(self, reply: Reply) -> Target:
        assert reply.target is not None
        return reply.target

    def _request(self, request: Request, timeout: float | None = None) -> Reply:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            number = self._send(request)
            while True:
                try:
                    reply = self._replies.get(
                        timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
                    )
                except queue.Empty:
                    raise TimeoutError from None
                if reply is None:
                    self._replies.put(None)
                    raise self._lost_error()
                # Replies to requests that timed out are skipped.
                if reply.number == number:
                    break
        if error := self._error or reply.error:
            raise DetError(error)
        return reply

    def _send(self, message: Message) -> int:
        """Send a message under the next sequence number, and return that number."""
        if os.getpid() != self._pid:
            # Its messages would have the numbers of this process's.
            raise DetError(
                f"det cannot send {type(message).__name__} from a forked process; call det in the"
                " process that called core.init()"
            )
        with self._lock:
            if self._lost or self._closing:
                raise self._lost_error()
            self._number += 1
            data = encode(Envelope(self._number, message))
            try:
                decode_envelope(data)
            except ValueError as error:
                self._number -= 1
                raise DetError(
                    f"det cannot send {type(message).__name__}: {error}; give numbers and text of"
                    " the types asked"
                ) from None
            try:
                self._connection.send(data)
            except (wire.ConnectionLost, TimeoutError, OSError) as error:
                raise self._lost_error() from error
            return self._number

    def _lost_error(self) -> HostLost:
        return HostLost(_CLOSED if self._closing else LOST)

    def _listen(self) -> None:
        try:
            while True:
                reply = decode_driver_message(self._connection.recv())
                if isinstance(reply, Preempt):
                    self._raise(reply.reason)
                elif self._unsure is not None and reply.number == self._unsure[0]:
                    self._unsure, self._error = None, reply.error
                else:
                    self._replies.put(reply)
        except (wire.ConnectionLost, OSError, ValueError):
            gone = not self._closing
            self._handle_lost()
            if gone and self._on_lost:
                self._on_lost()
            if gone and self._unsure and self._unrecorded:
                self._unrecorded(*self._unsure[1:])
        finally:
            self._over.release()

    def _handle_lost(self) -> None:
        """Wake everybody who waits for a reply, as none will come."""
        self._lost = True
        self._raise(LOST)
        self._replies.put(None)

    def _raise(self, reason: str) -> None:
        self.preempted.reason = reason
        self.preempted.raised = True


def connect(env: WorkerEnv, joined: socket.socket | None = None) -> RemoteHost:
    """Connect to the driver, or use `joined`, which is connected.

    When the driver is lost, the process has the run's patience to save, and is then killed. Raises
    DetError, with the versions of both, where the driver uses another protocol.
    """
    if joined is not None:
        connection = wire.Connection(joined)
    else:
        connection = wire.connect(env.driver, env.key, timeout=_CONNECT_SECONDS, run=env.run_id)
    greeting = hello(env.run_id, env.ranks.rank)
    connection.send(encode(greeting))
    if refused := refusal(greeting, decode_welcome(connection.recv(timeout=_CONNECT_SECONDS))):
        connection.close()
        raise DetError(refused)
    host = RemoteHost(
        connection,
        on_lost=lambda: _end_after(env.patience),
        target=env.target,
        unrecorded=partial(spool, env) if env.kept else None,
    )
    if env.ranks.rank == 0:
        host.report_origin(origin())
    return host


def _end_after(seconds: float) -> None:
    start_thread(_end, seconds, name="det-end")


def _end(seconds: float) -> None:
    time.sleep(seconds)
    sys.stderr.write(
        f"det: the driver has been gone for {seconds:.0f} s and the trial did not stop; ending it\n"
    )
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
