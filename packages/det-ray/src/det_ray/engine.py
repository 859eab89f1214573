"""Where runs are executed: an agent in an actor on each machine that a Ray cluster lends; nothing is shared but the storage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

from det_core.machine import told_address
from det_driver.engines import AgentCommand, Claim, Granted, Hears, QueueEngine, Standing

from .config import RaySettings

if TYPE_CHECKING:  # they import Ray, which takes a second
    from .cluster import Cluster, Group

_END_SECONDS = 20.0


class RayEngine(QueueEngine):
    """Has a placement group for each claim, by the claim's name, and carries the connections of the agents in it to this driver.

    An actor that is gone says nothing about its agent, which ends its runs with its lease.
    """

    carried = True
    pauses = (0.5, 0.5)

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._groups: dict[str, Group] = {}
        self._ending: set[str] = set()

    @cached_property
    def _cluster(self) -> Cluster:
        from .cluster import Cluster

        return Cluster(self.site.settings if isinstance(self.site.settings, RaySettings) else RaySettings())

    def abandon(self) -> None:
        super().abandon()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self.threads:  # Ray ends a process, with status 1, that calls it while it ends
            thread.join(max(deadline - time.monotonic(), 0.0))

    def find(self) -> dict[str, Granted]:
        with _answering():
            found = self._cluster.groups(f"{self.site.name}-")
        for name in self._groups.keys() - found:
            found[name] = self._groups[name]._replace(state="REMOVED", there=frozenset(), reason="")
        self._groups = found
        return {name: self._granted(name, group) for name, group in found.items()}

    def submit(self, claim: Claim, command: AgentCommand) -> str:
        with _answering():
            if group := self._cluster.groups(claim.name).get(claim.name):
                self._cluster.remove(claim.name, group)  # Ray was silent before all of it was there
            self._cluster.place(claim, command)
        return ""

    def cancel(self, name: str, *, at_once: bool) -> None:
        with _answering():
            if (group := self._cluster.groups(name).get(name)) is None:
                return
            waits = group.state == "PENDING" or (self._links is not None and not self.came(name))
            told = [] if waits else [k for k in group.there if self._cluster.end(name, k, at_once=at_once)]
            if waits or at_once:
                self.statuses |= dict.fromkeys(((name, node) for node in told), 0)
                self._cluster.remove(name, group)

    def address(self) -> str:
        return told_address() or self._cluster.own_address

    def python(self) -> tuple[str, ...]:
        return (getattr(self.site.settings, "python", None) or "", *super().python()[1:])

    def _granted(self, name: str, group: Group) -> Granted:
        gone: dict[int, bool] = {}
        if group.state != "PENDING":
            ended = (k for k in range(group.machines) if k not in group.there or (name, k) in self.statuses)
            gone = {k: self._has_left_nothing(name, k) for k in ended}
            self._look_after(name, group)
        how = Standing.WAITING if group.state == "PENDING" else Standing.RUNNING
        return Granted(name=name, standing=how, nodes=group.machines, native=group.id, reason=group.reason, gone=gone)

    def _look_after(self, name: str, group: Group) -> None:
        for node in group.there:
            self.ferry(name, node, partial(self._cluster.calls, name, node))
        gone = not group.there and all(self.dead(name, k) for k in range(group.machines))
        if group.state != "REMOVED" and name not in self.asked and (gone or self.lost(name)):
            self._cluster.remove(name, group)
        elif (
            0 < len(group.there) < group.machines and name not in self._ending
        ):  # they are of no use without the others
            self._ending.add(name)
            self.begin(self.drop, name)

    def _has_left_nothing(self, name: str, node: int) -> bool:
        """Tell whether an agent that is gone ended by itself, or never came; else its runs end with its lease.

        It ended by itself where it has given back the only machine of a claim.
        """
        given_back = self._groups[name].state == "REMOVED" and self._groups[name].machines == 1
        never_came = name in self.mine and not self.came(name, node)
        return given_back or never_came or self.statuses.get((name, node)) == 0


@contextmanager
def _answering() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise ConnectionError(f"Ray does not answer ({error})") from error
