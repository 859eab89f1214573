"""The messages between a worker and its driver, over one authenticated connection.

A worker sends Hello, the driver replies with Welcome, and both compare their protocols. After that,
a worker sends numbered messages: requests, which expect a reply with the same number, and events,
which expect none. The driver may send Preempt at any time. Messages are msgpack, which carries NaN
and infinities. A frame holds one message.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from det_core.checkpoint.manifest import Manifest
from det_core.support.installation import own_version
from det_core.train.host import Outcome, Target

from . import wire

# Raise it with any change of these messages. Hello and Welcome carry it, so they never change.
PROTOCOL = 9


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a worker: its run, its rank, and its protocol."""

    run_id: int
    rank: int
    pid: int
    protocol: int
    version: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The driver's reply to Hello: its protocol."""

    protocol: int
    version: str


class AskTarget(msgspec.Struct, frozen=True, tag="target"):
    """A request for the target."""


class AskBest(msgspec.Struct, frozen=True, tag="best"):
    """A request for the best value of the searcher's metric so far."""


class Validated(msgspec.Struct, frozen=True, tag="validated"):
    """A validation. The reply is the target."""

    batches: int
    metrics: dict[str, Any]
    length: int | None


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """The target is reached, with the searcher's metric. The reply is the next target."""

    batches: int
    metrics: dict[str, Any]
    length: int


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """A checkpoint's files will be deleted. The reply says that it is recorded, or refuses it."""

    uuid: str


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A checkpoint is published at `storage`. The reply says that it is recorded."""

    manifest: Manifest
    storage: str


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """The address where the ranks of the run meet.

    The chief sends it, and the others request it. The reply follows once it is known.
    """

    address: tuple[str, int] | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The last message of a run. It has a reply, so that it is known before the process ends.

    - `own_handler`: the script handles SIGTERM itself, and never asked whether it is to end.
    - `preempted`: the driver, the agent or a signal had requested its end.
    - `uncaught`: the exception has left the script, which ends by it.
    - `status`: what the script gave to `sys.exit`. A shell may end with another status.
    """

    outcome: Outcome
    message: str = ""
    traceback: str = ""
    own_handler: bool = False
    preempted: bool = False
    uncaught: bool = False
    status: int = 0


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """Metrics of any group, and the fraction of the target that is done, where known."""

    group: str
    batches: int
    metrics: dict[str, Any]
    fraction: float | None = None


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """The fraction of the target that is done."""

    fraction: float


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What the run is doing, in one word."""

    text: str


class TrialNotice(msgspec.Struct, frozen=True, tag="notice"):
    """A sentence about the trial for its user."""

    text: str


class Alerted(msgspec.Struct, frozen=True, tag="alerted"):
    """An alert of the trial's code, for webhooks."""

    title: str
    description: str
    level: str


class BackendChosen(msgspec.Struct, frozen=True, tag="backend-chosen"):
    """The backend that reduces the gradients of the run."""

    backend: str


class Origin(msgspec.Struct, frozen=True, tag="origin"):
    """The interpreter and machine of the chief: `det_core.support.origin.origin()`."""

    origin: dict[str, Any]


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The driver's reply to the request with this number. `error` says why there is no result."""

    number: int = 0
    target: Target | None = None
    value: float | None = None
    address: tuple[str, int] | None = None
    error: str = ""


class Preempt(msgspec.Struct, frozen=True, tag="preempt"):
    """Save and end soon."""

    reason: str


Request = AskTarget | AskBest | Validated | Completed | Checkpointed | Deleted | Finished | Meet
Message = Request | Reported | Progressed | Status | TrialNotice | Alerted | BackendChosen | Origin
DriverMessage = Reply | Preempt


class Envelope(msgspec.Struct, frozen=True, tag="envelope"):
    """An envelope: a message of a worker and its sequence number on its connection, from 1."""

    number: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_envelopes: msgspec.msgpack.Decoder[Hello | Envelope] = msgspec.msgpack.Decoder(Hello | Envelope)
_driver_messages: msgspec.msgpack.Decoder[DriverMessage] = msgspec.msgpack.Decoder(DriverMessage)

encode = _encoder.encode
decode_envelope = _envelopes.decode
decode_driver_message = _driver_messages.decode
decode_welcome = msgspec.msgpack.Decoder(Welcome).decode


def hello(run_id: int, rank: int) -> Hello:
    """Return the first message of this process as a worker."""
    return Hello(run_id, rank, os.getpid(), PROTOCOL, own_version())


def greeted(connection: wire.Connection, timeout: float | None) -> Hello | None:
    """Return the first message of a worker.

    None for another message, or where it names a run whose key was not proved.
    """
    envelope = decode_envelope(connection.recv(timeout))
    return envelope if isinstance(envelope, Hello) and envelope.run_id == connection.run else None


def welcome() -> Welcome:
    """Return the reply to Hello of this process as a driver."""
    return Welcome(PROTOCOL, own_version())


def refusal(worker: Hello, driver: Welcome) -> str | None:
    """Return why a worker and a driver cannot communicate, with both versions, or None."""
    if worker.protocol == driver.protocol:
        return None
    return (
        f"the worker has det-core {worker.version} (protocol {worker.protocol}), but its driver"
        f" det-core {driver.version} (protocol {driver.protocol}); install the same version of det"
        " for both"
    )
