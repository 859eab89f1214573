"""Where runs are executed: an agent in an actor on each machine that a Ray cluster lends; nothing is shared but the storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from det_core.agent import RunSpec
from det_driver.engines import AgentCommand, AgentEngine, Claim, Granted, Hears, Site, Standing

from .config import RaySettings

if TYPE_CHECKING:  # they import Ray, which takes a second
    from .cluster import Cluster, Group

_PAUSE_SECONDS, _MARGIN_SECONDS, _END_SECONDS = 0.5, 3.0, 20.0


class RayEngine(AgentEngine):
    """Has a placement group for each claim, by the claim's name, and carries the connections of the agents in it to this driver.

    An actor that is gone says nothing about its agent, which ends its runs with its lease.
    """

    carried = True

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._due: dict[str, tuple[Claim, AgentCommand]] = {}
        self._mine: set[str] = set()
        self._groups: dict[str, Group] = {}  # never changed, but replaced
        self._ends: dict[
            tuple[str, int], float
        ] = {}  # from when on nothing of an agent goes on, of the monotonic clock
        self._carried: set[tuple[str, int]] = set()
        self._ending: set[str] = set()
        self._changing = threading.RLock()
        self._threads: list[threading.Thread] = []

    @property
    def _settings(self) -> RaySettings:
        return self.site.settings if isinstance(self.site.settings, RaySettings) else RaySettings()

    @cached_property
    def _cluster(self) -> Cluster:
        from .cluster import Cluster

        return Cluster(self._settings)

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        specs = super().open(site)
        self._begin(self._attend)
        return specs

    def abandon(self) -> None:
        super().abandon()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:  # Ray ends a process, with status 1, that calls it while it ends
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _begin(self, what: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True, name="det-ray")
        self._threads.append(thread)
        thread.start()

    def claims(self, runs: int, slots: int) -> list[Claim]:
        each = self._settings.slots_per_node or max(slots, 1)
        claims = -(-runs // max(each // max(slots, 1), 1)) - sum(not self.came(name) for name in self.asked)
        return [Claim(name=self.new_name(), slots=each, nodes=max(-(-slots // each), 1)) for _ in range(claims)]

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        if claim.name not in self._mine:
            self._mine.add(claim.name)
            self._due[claim.name] = claim, command

    def drop(self, name: str, *, at_once: bool = False) -> None:
        with self._changing:
            self._due.pop(name, None)
            group = self._cluster.groups(name).get(name)
            if group is None:
                return
            # Where no agent has come there is nothing to save.
            if group.state == "PENDING" or (self._links is not None and not self.came(name)):
                self._cluster.remove(name, group)
                return
            told = [node for node in group.there if self._cluster.end(name, node, at_once=at_once)]
            if at_once:
                self._ends |= dict.fromkeys(((name, node) for node in told), 0.0)
                self._cluster.remove(name, group)

    def look(self) -> Mapping[str, Granted]:
        self._refresh()
        return {name: self._granted(name, group) for name, group in self._groups.items()}

    def dead(self, name: str, node: int) -> bool:
        return self._ends.get((name, node), time.monotonic() + 1) <= time.monotonic()

    def awaited(self) -> str:
        return ", ".join(sorted({group.reason for group in self._groups.values() if group.reason}))

    def directory(self, claim: Claim) -> Path:
        return Path(self._settings.directory)

    def python(self) -> tuple[str, ...]:
        return (self._settings.python or "", *super().python()[1:])

    def _granted(self, name: str, group: Group) -> Granted:
        ended = all(self.dead(name, node) for node in range(group.machines))
        standing = Standing.WAITING if group.state == "PENDING" else Standing.ENDED if ended else Standing.RUNNING
        return Granted(name=name, standing=standing, nodes=group.machines, native=group.id, reason=group.reason)

    def _attend(self) -> None:
        from ray.exceptions import RayError

        while not self._closing.wait(_PAUSE_SECONDS):
            with suppress(RayError, ConnectionError, TimeoutError):  # what was known last holds
                with self._changing:
                    for name in list(self._due):
                        self._cluster.place(*self._due.pop(name))
                self._refresh()

    def _refresh(self) -> None:
        with self._changing:
            before, found = self._groups, self._cluster.groups(f"{self.site.name}-")
            for name in before.keys() - found:
                found[name] = before[name]._replace(state="REMOVED", there=frozenset(), reason="")
            self._groups = found
            for name, group in found.items():
                if group.state != "PENDING":
                    self._look_after(name, group)

    def _look_after(self, name: str, group: Group) -> None:
        for node in range(group.machines):
            if node not in group.there:
                self._end(name, node, None)
            elif self._links is not None and (name, node) not in self._carried:
                self._carried.add((name, node))
                self._carry(name, node)
        if group.state == "REMOVED" or len(group.there) == group.machines:
            return
        if group.there and name not in self._ending:  # they are of no use without the others
            self._ending.add(name)
            self._begin(self.drop, name)
        if not group.there and name not in self.asked and self._granted(name, group).standing is Standing.ENDED:
            self._cluster.remove(name, group)

    def _carry(self, name: str, node: int) -> None:
        from .stream import carry

        with suppress(ValueError):  # it has just ended
            place, ended = self._cluster.actor(name, node), partial(self._ended, name, node)
            self._begin(carry, place, self.links.address, self._closing, ended)

    def _ended(self, name: str, node: int, status: int | None, words: str) -> None:
        if status != 0:
            with open(self.log(name), "a") as log:
                log.write(f"{words}\n")
        self._end(name, node, status)

    def _end(self, name: str, node: int, status: int | None) -> None:
        """An agent is gone: one that ended by itself, or never came, has left nothing; else its runs end with its lease.

        It ended by itself where it has given back the only machine of a claim.
        """
        gone = self._groups[name]
        certain = status == 0 or (name in self._mine and not self.came(name, node))
        certain = certain or (gone.state == "REMOVED" and gone.machines == 1)
        at = time.monotonic() + (0.0 if certain else self.site.lease + _MARGIN_SECONDS)
        self._ends[name, node] = min(at, self._ends.get((name, node), at))
