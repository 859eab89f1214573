"""The journal of a search: what its searcher was told, in order. Replaying it gives the same search."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..search import Exit


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The search begins."""


class Validated(msgspec.Struct, frozen=True, tag="validated"):
    """A trial (by the searcher's number) reported a validation at `length`, in the searcher's unit."""

    trial: int
    length: int
    batches: int
    metrics: dict[str, Any]


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A trial ended for good."""

    trial: int
    reason: Exit


class Reopened(msgspec.Struct, frozen=True, tag="reopened"):
    """A trial that had ended in an error is to go on: the replay passes over its exit before this."""

    trial: int


Event = Started | Validated | Exited | Reopened


def encode(event: Event) -> str:
    """Return the event as JSON text; Python's, whose NaN and Infinity survive."""
    return json.dumps(msgspec.to_builtins(event))


def decode(data: bytes) -> Event:
    return msgspec.convert(json.loads(data), Event)  # type: ignore[no-any-return]
