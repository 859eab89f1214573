"""Runs trials on a Ray cluster: an agent in an actor on each node.

The driver shares nothing with the nodes but the storage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

from det_driver.engines import (
    AgentCommand,
    Allocation,
    AllocationRequest,
    AllocationState,
    OnEvent,
    QueueEngine,
)
from det_node.machine import given_address

from .config import RaySettings

# Importing Ray takes a second.
if TYPE_CHECKING:
    from .cluster import Cluster, Group

_END_SECONDS = 20.0


class RayEngine(QueueEngine):
    """Creates a placement group for each allocation request, and relays connections of its agents.

    The placement group has the name of the request. When an actor is gone, nothing is known of its
    agent, whose runs end with its lease.
    """

    carried = True
    pauses = (0.5, 0.5)

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self._groups: dict[str, Group] = {}
        self._ending: set[str] = set()

    @cached_property
    def _cluster(self) -> Cluster:
        from .cluster import Cluster

        return Cluster(
            self.context.settings
            if isinstance(self.context.settings, RaySettings)
            else RaySettings()
        )

    def detach(self) -> None:
        super().detach()
        deadline = time.monotonic() + _END_SECONDS
        # Ray ends a process with status 1 if it calls Ray during its exit.
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def find(self) -> dict[str, Allocation]:
        with _convert_errors():
            found = self._cluster.groups(f"{self.context.name}-")
        for name in self._groups.keys() - found:
            found[name] = self._groups[name]._replace(state="REMOVED", there=frozenset(), reason="")
        self._groups = found
        return {name: self._allocation(name, group) for name, group in found.items()}

    def submit(self, request: AllocationRequest, command: AgentCommand) -> str:
        with _convert_errors():
            if group := self._cluster.groups(request.name).get(request.name):
                # An earlier request was not completed, because Ray did not answer.
                self._cluster.remove(request.name, group)
            self._cluster.place(request, command)
        return ""

    def cancel(self, name: str, *, at_once: bool) -> None:
        with _convert_errors():
            if (group := self._cluster.groups(name).get(name)) is None:
                return
            waits = group.state == "PENDING" or (
                self._links is not None and not self.is_connected(name)
            )
            ended = (
                []
                if waits
                else [k for k in group.there if self._cluster.end(name, k, at_once=at_once)]
            )
            if waits or at_once:
                self.statuses |= dict.fromkeys(((name, node) for node in ended), 0)
                self._cluster.remove(name, group)

    def address(self) -> str:
        return given_address() or self._cluster.own_address

    def python(self) -> tuple[str, ...]:
        return (getattr(self.context.settings, "python", None) or "", *super().python()[1:])

    def _allocation(self, name: str, group: Group) -> Allocation:
        gone: dict[int, bool] = {}
        if group.state != "PENDING":
            ended = (
                k
                for k in range(group.machines)
                if k not in group.there or (name, k) in self.statuses
            )
            gone = {k: self._has_left_nothing(name, k) for k in ended}
            self._look_after(name, group)
        how = AllocationState.WAITING if group.state == "PENDING" else AllocationState.RUNNING
        return Allocation(
            name=name,
            state=how,
            nodes=group.machines,
            native=group.id,
            reason=group.reason,
            gone=gone,
        )

    def _look_after(self, name: str, group: Group) -> None:
        for node in group.there:
            self.ferry(name, node, partial(self._cluster.calls, name, node))
        gone = not group.there and all(self.dead(name, k) for k in range(group.machines))
        if group.state != "REMOVED" and name not in self.asked and (gone or self.lost(name)):
            self._cluster.remove(name, group)
        elif 0 < len(group.there) < group.machines and name not in self._ending:
            # The agents are useless without the missing ones.
            self._ending.add(name)
            self.begin(self.drop, name)

    def _has_left_nothing(self, name: str, node: int) -> bool:
        """Return whether no run of an agent that is gone can still be alive.

        That is so if the agent never started, ended by itself, or has released the only node of its
        allocation. Otherwise its runs end with its lease.
        """
        given_back = self._groups[name].state == "REMOVED" and self._groups[name].machines == 1
        never_connected = name in self.mine and not self.is_connected(name, node)
        return given_back or never_connected or self.statuses.get((name, node)) == 0


@contextmanager
def _convert_errors() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise ConnectionError(f"Ray does not answer ({error})") from error
