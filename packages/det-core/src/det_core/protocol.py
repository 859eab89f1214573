"""What a worker and its driver say to each other, over one authenticated connection.

A worker says Hello, the driver Welcome, and both compare what they speak. Then a worker asks (an answer follows) or tells
(none does), each word under its number, and an answer has the number of its question; the driver may ask for a preemption
at any time. Messages are msgpack, which carries NaN and infinities, one to a frame.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from . import wire
from .host import Outcome, Target
from .manifest import Manifest, own_version

PROTOCOL = 5  # to be raised with any change of these messages; Hello and Welcome stay, as they carry it


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first words: which run this is, which of its ranks, and what the worker speaks."""

    run_id: int
    rank: int
    pid: int
    protocol: int
    version: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The driver's answer to Hello: what it speaks."""

    protocol: int
    version: str


class AskTarget(msgspec.Struct, frozen=True, tag="target"):
    """Until when to train?"""


class AskBest(msgspec.Struct, frozen=True, tag="best"):
    """The best value of the searcher's metric so far?"""


class Validated(msgspec.Struct, frozen=True, tag="validated"):
    """A validation; the answer is the target."""

    batches: int
    metrics: dict[str, Any]
    length: int | None


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """The target is reached, with the searcher's metric; the answer is the next target."""

    batches: int
    metrics: dict[str, Any]
    length: int


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """A checkpoint's files are deleted; the answer says that it is recorded."""

    uuid: str


class Checkpointed(msgspec.Struct, frozen=True, tag="checkpointed"):
    """A checkpoint is published at `storage`; the answer says that it is recorded."""

    manifest: Manifest
    storage: str


class Spooled(msgspec.Struct, frozen=True):
    """What is left in a file for the next driver: a checkpoint that a run published when its own driver was gone."""

    run_id: int
    manifest: Manifest
    storage: str


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Where the ranks of the run meet: the chief says where it listens, the others ask; the answer follows once it is known."""

    address: tuple[str, int] | None = None


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The last word of a run; answered, so that it is known before the process ends."""

    outcome: Outcome
    message: str = ""
    traceback: str = ""


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """Metrics of any group, and how much is done by then, 0 to 1, where that is known."""

    group: str
    batches: int
    metrics: dict[str, Any]
    fraction: float | None = None


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """How much is done, 0 to 1."""

    fraction: float


class Status(msgspec.Struct, frozen=True, tag="status"):
    """What the run is doing, in a word."""

    text: str


class Chose(msgspec.Struct, frozen=True, tag="chose"):
    """The backend that reduces the gradients of the run."""

    backend: str


class CameFrom(msgspec.Struct, frozen=True, tag="from"):
    """What the first rank of the run runs in: `det_core.origin.origin()`."""

    origin: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The driver's answer to the question of that number; `error` says why there is none."""

    number: int = 0
    target: Target | None = None
    value: float | None = None
    address: tuple[str, int] | None = None
    error: str = ""


class Preempt(msgspec.Struct, frozen=True, tag="preempt"):
    """Save and end, soon."""

    reason: str


Question = AskTarget | AskBest | Validated | Completed | Checkpointed | Deleted | Finished | Meet
Word = Question | Reported | Progressed | Status | Chose | CameFrom
Reply = Answer | Preempt


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A word of a worker under its number: 1, 2, 3 … on one connection."""

    number: int
    word: Word


_encoder = msgspec.msgpack.Encoder()
_said: msgspec.msgpack.Decoder[Hello | Said] = msgspec.msgpack.Decoder(Hello | Said)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode
decode_said = _said.decode
decode_reply = _replies.decode
encode_note = msgspec.json.encode
decode_note = msgspec.json.Decoder(Spooled).decode
decode_welcome = msgspec.msgpack.Decoder(Welcome).decode


def hello(run_id: int, rank: int) -> Hello:
    """Return the first words of this process as a worker."""
    return Hello(run_id, rank, os.getpid(), PROTOCOL, own_version())


def greeted(connection: wire.Connection, timeout: float | None) -> Hello | None:
    """Return the first words of a worker, None where they are others, or those of a run whose key it has not proved."""
    said = decode_said(connection.recv(timeout))
    return said if isinstance(said, Hello) and said.run_id == connection.run else None


def welcome() -> Welcome:
    """Return the answer of this process as a driver."""
    return Welcome(PROTOCOL, own_version())


def refusal(worker: Hello, driver: Welcome) -> str | None:
    """Say why a worker and a driver cannot talk, naming the versions of both; None where they can."""
    if worker.protocol == driver.protocol:
        return None
    return (
        f"the worker has det-core {worker.version} (protocol {worker.protocol}), but its driver det-core {driver.version} "
        f"(protocol {driver.protocol}); install the same version of det-core for both"
    )
