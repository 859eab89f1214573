"""Runs whose ranks are on several machines: one of them without the others is no use."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from msgspec.structs import replace

from det_core.agent import Answered, Ended, Order, RunSpec, SignalRun, Spoke
from det_core.protocol import Answer
from det_core.wire import Address

from .base import Hears, machine_of

GRACE_SECONDS = 10.0
"""How long ranks that lost another one have to say so, and to end by themselves."""


class Ordered(Protocol):
    """An agent, as one that is told what to do."""

    def order(self, order: Order) -> None:
        """Say what is to be done."""


@dataclass
class _Gang:
    """What is known of one run: how its parts ended, by machine; where its ranks meet, and who waits to be told.

    `causes` are the ends of parts that were not killed for the others' sake; some parts of a `partial` one are not heard of.
    """

    ends: dict[str, Ended] = field(default_factory=dict)
    causes: list[Ended] = field(default_factory=list)
    partial: bool = False
    doomed: float | None = None  # when what is left of it is killed
    killed: bool = False
    chief: Address | None = None
    waiting: list[tuple[Ordered, Spoke]] = field(default_factory=list)


class Gangs:
    """Passes on where the ranks meet, and makes one end of those of all parts, which `hears` is told.

    Where a part has failed or is lost, the others are ended through `order`: the ranks wait for one another.
    """

    def __init__(self, order: Callable[[int, Order], None], hears: Hears) -> None:
        self._order, self._hears = order, hears
        self._lock = threading.RLock()
        self._gangs: dict[int, _Gang] = {}

    def meet(self, told: Spoke, address: Address | None, agent: Ordered) -> None:
        """Take a rank's word of where the ranks meet, or its question; each is answered as soon as it is known."""
        with self._lock:
            gang = self._gangs.setdefault(told.run, _Gang())
            gang.chief = address or gang.chief
            gang.waiting.append((agent, told))
            if gang.chief is not None:
                for each, asked in gang.waiting:
                    each.order(Answered(asked.link, Answer(asked.said.number, address=gang.chief)))
                gang.waiting.clear()

    def ended(self, parts: Mapping[str, RunSpec], machine: str, told: Ended) -> None:
        """Take the end of a part; the run has ended with the last of them."""
        with self._lock:
            gang = self._gangs.setdefault(told.run, _Gang())
            if machine not in gang.ends:
                gang.ends[machine] = told
                gang.causes += [] if gang.killed else [told]
            failed = told.status or told.unstarted or told.unstartable
            if failed and gang.doomed is None:
                gang.doomed = time.monotonic() + GRACE_SECONDS
            all_known = gang.partial or not missing(parts.values())
            if not all_known or not parts.keys() <= gang.ends.keys():
                return
            cause = _cause(gang.causes or list(gang.ends.values()))
        self._hears(cause)

    def lost(self, parts: Mapping[str, RunSpec], machine: str) -> None:
        """Give up the part of a run on a machine that is gone, and with it the run."""
        spec = parts[machine]
        if spec.of:
            self.doom(spec.run_id)
            self.ended(parts, machine, Ended(spec.run_id, -signal.SIGKILL, spec.first))

    def doom(self, run: int, *, partial: bool = False) -> None:
        """Have what is left of a run killed; a `partial` one has parts that are gone without a word."""
        with self._lock:
            gang = self._gangs.setdefault(run, _Gang())
            gang.doomed, gang.partial = time.monotonic(), gang.partial or partial

    def end_the_doomed(self) -> None:
        """Kill what is left of runs a part of which has failed a while ago."""
        with self._lock:
            now = time.monotonic()
            due = [run for run, gang in self._gangs.items() if not gang.killed and now >= (gang.doomed or now + 1)]
            for run in due:
                self._gangs[run].killed = True
        for run in due:
            self._order(run, SignalRun(run, signal.SIGKILL))

    def forget(self, run: int) -> None:
        """A run has ended, and nobody asks for it any more."""
        with self._lock:
            self._gangs.pop(run, None)


def split(spec: RunSpec, addresses: Mapping[str, str]) -> list[RunSpec]:
    """Return the parts of a run, in the order of ranks, each with the ranks whose devices are on one machine.

    They meet on the first one, at its address; what is not in `addresses` is gone.
    """
    chief = {"DET_CHIEF_IP": addresses.get(machine_of(spec.devices[0]), "")}
    spec = replace(spec, variables={**spec.variables, **chief})
    ranks = zip(range(spec.of), spec.devices, spec.slots, spec.ranks, strict=True)
    parts = []
    for node, found in groupby(ranks, key=lambda rank: machine_of(rank[1])):
        first, devices, slots, own = zip(*found, strict=True)
        parts.append(replace(spec, node=node, first=first[0], devices=devices, slots=slots, ranks=own))
    return parts


def whole(parts: Sequence[RunSpec]) -> RunSpec:
    """Return a run as it was before it was split, as far as its parts are known."""
    if not parts[0].of:
        return parts[0]
    parts = sorted(parts, key=lambda part: part.first)
    return replace(
        parts[0],
        node="",
        first=0,
        devices=tuple(device for part in parts for device in part.devices),
        slots=tuple(slot for part in parts for slot in part.slots),
        ranks=tuple(rank for part in parts for rank in part.ranks),
    )


def missing(parts: Iterable[RunSpec]) -> bool:
    """Tell whether some of the parts of a run are not among these."""
    known = list(parts)
    return sum(len(part.ranks) for part in known) < known[0].of


def _cause(ends: Sequence[Ended]) -> Ended:
    """Return the end that made the others: of a part that was not started, of the first whose rank was killed, or that failed."""
    unborn = [end for end in ends if end.unstarted or end.unstartable]
    killed = [end for end in ends if end.status == -signal.SIGKILL]
    return [*unborn, *killed[:1], *(end for end in ends if end.status), *ends][0]
