"""Runs whose ranks are on several nodes: a part cannot continue without the others."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from msgspec.structs import replace

from det_node.agent import Ended, Order, RunSpec, SignalRun, WorkerMessage, WorkerReply
from det_node.protocol import Reply
from det_node.wire import Address

from .base import OnEvent, machine_of

GRACE_SECONDS = 10.0
"""How long the ranks that lost another one may take to report it and to end by themselves."""


class Ordered(Protocol):
    """An agent to which orders can be sent."""

    def order(self, order: Order) -> None:
        """Send an order."""


@dataclass
class _Gang:
    """The state of one run: how its parts ended, by node, and the address of its chief.

    - `causes`: the ends of parts that were not killed because another part had failed.
    - `partial`: some parts of the run are unknown.
    - `doomed`: when the remaining parts are killed, of the monotonic clock.
    - `waiting`: agents and requests for the chief's address that have no reply yet.
    """

    ends: dict[str, Ended] = field(default_factory=dict)
    causes: list[Ended] = field(default_factory=list)
    partial: bool = False
    doomed: float | None = None
    killed: bool = False
    chief: Address | None = None
    waiting: list[tuple[Ordered, WorkerMessage]] = field(default_factory=list)


class Gangs:
    """Passes on the chief's address, and merges the ends of a run's parts into one for `on_event`.

    Where a part has failed or is lost, the other parts are ended through `order`, because their
    ranks wait for one another.
    """

    def __init__(self, order: Callable[[int, Order], None], on_event: OnEvent) -> None:
        self._order, self._on_event = order, on_event
        self._lock = threading.RLock()
        self._gangs: dict[int, _Gang] = {}

    def exchange_chief_address(
        self, event: WorkerMessage, address: Address | None, agent: Ordered
    ) -> None:
        """Take the chief's address from a rank, or a request for it, and reply once it is known."""
        with self._lock:
            gang = self._gangs.setdefault(event.run, _Gang())
            gang.chief = address or gang.chief
            gang.waiting.append((agent, event))
            if gang.chief is not None:
                for each, request in gang.waiting:
                    each.order(
                        WorkerReply(
                            request.link, Reply(request.envelope.number, address=gang.chief)
                        )
                    )
                gang.waiting.clear()

    def ended(self, parts: Mapping[str, RunSpec], machine: str, event: Ended) -> None:
        """Take the end of a part. The run has ended when all parts have."""
        with self._lock:
            gang = self._gangs.setdefault(event.run, _Gang())
            if machine not in gang.ends:
                gang.ends[machine] = event
                gang.causes += [] if gang.killed else [event]
            failed = event.status or event.unstarted or event.unstartable
            if failed and gang.doomed is None:
                gang.doomed = time.monotonic() + GRACE_SECONDS
            all_known = gang.partial or not missing(parts.values())
            if not all_known or not parts.keys() <= gang.ends.keys():
                return
            cause = _cause(gang.causes or list(gang.ends.values()))
        self._on_event(cause)

    def mark_lost(self, parts: Mapping[str, RunSpec], machine: str) -> None:
        """Give up the part of a run on a node that is lost, and kill the rest of the run."""
        spec = parts[machine]
        if spec.world_size:
            self.doom(spec.run_id)
            self.ended(parts, machine, Ended(spec.run_id, -signal.SIGKILL, spec.first_rank))

    def doom(self, run: int, *, partial: bool = False) -> None:
        """Have the remaining parts of a run killed.

        A `partial` run has parts that are gone and send no message.
        """
        with self._lock:
            gang = self._gangs.setdefault(run, _Gang())
            gang.doomed, gang.partial = time.monotonic(), gang.partial or partial

    def kill_doomed(self) -> None:
        """Kill the remaining parts of runs whose time to end by themselves is over."""
        with self._lock:
            now = time.monotonic()
            due = [
                run
                for run, gang in self._gangs.items()
                if not gang.killed and now >= (gang.doomed or now + 1)
            ]
            for run in due:
                self._gangs[run].killed = True
        for run in due:
            self._order(run, SignalRun(run, signal.SIGKILL))

    def release(self, run: int) -> None:
        """Drop the state of a run that has ended."""
        with self._lock:
            self._gangs.pop(run, None)


def split(spec: RunSpec, addresses: Mapping[str, str]) -> list[RunSpec]:
    """Return the parts of a run in the order of ranks, each with the ranks on one node.

    The ranks connect to the chief's node. Nodes that are not in `addresses` are lost.
    """
    chief = {"DET_CHIEF_IP": addresses.get(machine_of(spec.devices[0]), "")}
    spec = replace(spec, variables={**spec.variables, **chief})
    ranks = zip(range(spec.world_size), spec.devices, spec.slots, spec.ranks, strict=True)
    parts = []
    for node, found in groupby(ranks, key=lambda rank: machine_of(rank[1])):
        first, devices, slots, own = zip(*found, strict=True)
        parts.append(
            replace(spec, node=node, first_rank=first[0], devices=devices, slots=slots, ranks=own)
        )
    return parts


def whole(parts: Sequence[RunSpec]) -> RunSpec:
    """Join the known parts of a run into the run before it was split."""
    if not parts[0].world_size:
        return parts[0]
    parts = sorted(parts, key=lambda part: part.first_rank)
    return replace(
        parts[0],
        node="",
        first_rank=0,
        devices=tuple(device for part in parts for device in part.devices),
        slots=tuple(slot for part in parts for slot in part.slots),
        ranks=tuple(rank for part in parts for rank in part.ranks),
    )


def missing(parts: Iterable[RunSpec]) -> bool:
    """Return whether some parts of a run are not among these."""
    known = list(parts)
    return sum(len(part.ranks) for part in known) < known[0].world_size


def _cause(ends: Sequence[Ended]) -> Ended:
    """Return the end that caused the others.

    This is, in order: a part that was not started, the first part whose rank was killed, the first
    part that failed.
    """
    unstarted = [end for end in ends if end.unstarted or end.unstartable]
    killed = [end for end in ends if end.status == -signal.SIGKILL]
    return [*unstarted, *killed[:1], *(end for end in ends if end.status), *ends][0]
