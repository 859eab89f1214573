"""Runs by agents. Engines differ only in where they place the agents."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from signal import Signals

import msgspec

from det_core.errors import DetError
from det_core.support.threads import start_thread
from det_node.agent import (
    AgentHello,
    AgentStart,
    Attach,
    EndRuns,
    Heartbeat,
    MessageAck,
    PreemptRun,
    RunSpec,
    SignalRun,
    WorkerReply,
    encode_start,
    pack,
)
from det_node.launch import say
from det_node.protocol import Reply, welcome

from ._gangs import split
from ._links import Linked, Links, make_own, read_secret
from .allocations import AgentCommand, Allocation, AllocationRequest, AllocationState, last_line
from .base import Engine, EngineContext, Node, NodeLost, OnEvent
from .preparing import PREPARATIONS, Readiness

MARGIN_SECONDS = 3.0
"""Added to a lease when a driver waits: clocks differ, and agents check theirs in intervals."""
SHORTEST_LEASE = 5.0
"""In seconds. With fencing, a shorter lease would end runs whenever a host is busy."""
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05
# Heartbeats within one lease.
_BEATS = 8
_WATCH_SECONDS, _WATCH_IDLE_SECONDS = 0.25, 2.0
"""How often agents are watched, and those without a run."""
_IDLE_SECONDS = 120.0
_MOST_FAILED_STARTS = 3


class AgentEngine(Engine):
    """Runs trials by agents that connect to this driver. A derived class places the agents.

    - `fenced`: an agent that cannot be reached may still train. Its runs are given up when its
      lease has expired, because it ends them by then.
    - `shared`: agents see the directories of this host.
    - `carried`: the engine relays the connections of agents to this host. They use TLS on loopback
      too.
    """

    fenced = True
    shared = False
    carried = False

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self.asked: dict[str, tuple[int, float]] = {}
        """The open allocation requests: number of nodes, and when it was made (monotonic clock)."""
        self.context: EngineContext
        self.readiness: Readiness
        self._links: Links | None = None
        # Cached, because an experiment's code and the files of its environment never change.
        self._pack = cache(pack)
        self._failed_starts, self._closing = 0, threading.Event()

    # Where agents are placed

    @abstractmethod
    def ask(self, request: AllocationRequest, command: AgentCommand) -> None:
        """Have agents started as soon as there is room, and return at once.

        A second call with the same name changes nothing.
        """

    @abstractmethod
    def drop(self, name: str, *, at_once: bool = False) -> None:
        """Give up an allocation request, waiting or running.

        Its agents get SIGTERM, or are killed with `at_once`. Nothing happens when it has ended.
        """

    @abstractmethod
    def look(self) -> Mapping[str, Allocation]:
        """Return all allocations of this experiment by name, also those of other processes."""

    @abstractmethod
    def dead(self, name: str, node: int) -> bool:
        """Return whether an agent and its runs have certainly ended on its node."""

    def requests(self, runs: int, slots: int) -> list[AllocationRequest]:
        """Return the allocation requests for `runs` more runs.

        Each is for one run, or for nodes with the `slots_per_node` slots of the settings.
        """
        each: int = getattr(self.context.settings, "slots_per_node", None) or max(slots, 1)
        count = -(-runs // max(each // max(slots, 1), 1)) - sum(
            map(self.is_pending, list(self.asked))
        )
        return [
            AllocationRequest(name=self.new_name(), slots=each, nodes=max(-(-slots // each), 1))
            for _ in range(count)
        ]

    def is_pending(self, name: str) -> bool:
        """Return whether some agents of an allocation have yet to connect or to be probed.

        Some may have a node before others.
        """
        connected = {a.node for a in self.links.all() if a.leaving or self.readiness.fits(a.node)}
        nodes, _ = self.asked.get(name, (0, 0.0))
        return any(f"{name}/{k}" not in connected and not self.dead(name, k) for k in range(nodes))

    def new_name(self) -> str:
        """Return a name for an allocation request that is never used again."""
        return f"{self.context.name}-{secrets.token_hex(4)}"

    def address(self) -> str:
        """Return the address at which agents reach this process."""
        return "127.0.0.1"

    def directory(self, request: AllocationRequest) -> Path:
        """Return the directory of an agent's own files, by default that of the settings."""
        return Path(getattr(self.context.settings, "directory", self.context.directory))

    def workers_host(self, request: AllocationRequest) -> str:
        """Return the address at which workers reach their agent."""
        return "127.0.0.1"

    def python(self) -> tuple[str, ...]:
        """Return the command of an agent, by default with the Python that the settings name."""
        return (
            getattr(self.context.settings, "python", None) or sys.executable,
            "-P",
            "-m",
            "det_node.agent",
            "-",
        )

    def environ(self) -> Mapping[str, str] | None:
        """Return the environment variables of runs, or None for those of their agent.

        Where agents see this host's files, these are the variables of this process.
        """
        return dict(os.environ) if self.shared else None

    def joined(self, here: AgentHello) -> None:
        """Handle the first message of an agent."""

    def adopt(self, node: str, spec: RunSpec) -> RunSpec:
        """Return what is taken over of a run that an agent has from an earlier driver."""
        return spec

    def node(self, here: AgentHello) -> Node:
        """Return the node of an agent."""
        name = f"{here.name}/{here.node}"
        return Node(
            name,
            tuple(f"{name}/{device}" for device in here.devices),
            here.gpus,
            machine=here.machine,
        )

    def log(self, name: str) -> str:
        """Return the path of an agent's own log."""
        return str(self.context.directory / "agent.log")

    # An engine

    @property
    def links(self) -> Links:
        """The agents that have connected. Available from `open` on."""
        assert self._links
        return self._links

    def open(self, context: EngineContext) -> tuple[RunSpec, ...]:
        self.context = (
            replace(context, lease=max(context.lease, SHORTEST_LEASE)) if self.fenced else context
        )
        make_own(context.directory)
        self.readiness, noted = (
            Readiness(self, context, here=self.shared),
            context.directory / "driver.json",
        )
        key, sealed, attach, handle = (
            read_secret(context.directory),
            self.carried,
            self._attach,
            self.readiness.handle,
        )
        self._links = Links(
            key,
            self.address(),
            noted,
            sealed=sealed,
            on_event=handle,
            attach=attach,
            joined=self.joined,
            adopt=self.adopt,
            failed=partial(self.broke, "det-wire"),
        )
        self.preparing, self.together = self.readiness.explain_wait, self._links.together
        start_thread(self._watch, name="det-beats", failed=partial(self.broke, "det-beats"))
        requests = {
            n: request
            for n, request in self.look().items()
            if request.state is not AllocationState.ENDED
        }
        connected = [
            (n, k)
            for n, c in requests.items()
            if c.state is AllocationState.RUNNING
            for k in range(c.nodes)
        ]
        self.asked = {n: (request.nodes, time.monotonic()) for n, request in requests.items()}
        self._wait_for(connected)
        self.links.end_partial_runs()
        return tuple(spec for spec in self.links.runs() if spec.run_id < PREPARATIONS)

    def _attach(self, logs: dict[int, dict[str, int]]) -> Attach:
        self._failed_starts, ours = 0, welcome()
        return Attach(
            ours.protocol, ours.version, self.environ(), self.context.lease, self.fenced, logs
        )

    def _wait_for(self, agents: list[tuple[str, int]]) -> None:
        """Wait until each of these agents has connected or its runs have certainly ended."""
        began, noticed, most = time.monotonic(), False, self.context.lease + MARGIN_SECONDS
        while missing := {
            name for name, k in agents if not self.is_connected(name, k) and not self.dead(name, k)
        }:
            if self.links.refused:
                raise DetError(self.links.refused)
            if (waited := time.monotonic() - began) > most:
                return
            if waited > 1.0 and not noticed:
                noticed = True
                say(
                    f"waiting for {', '.join(sorted(missing))}, which may still train; {most:.0f} s"
                    " at most"
                )
            time.sleep(_POLL_SECONDS)

    def is_connected(self, name: str, node: int | None = None) -> bool:
        """Return whether an agent of this allocation has connected and is not lost.

        With `node`, only the agent on that node of the allocation counts.
        """
        connected = [agent.hello for agent in self._links.all()] if self._links is not None else []
        return any(here.name == name and node in (None, here.node) for here in connected)

    def nodes(self) -> list[Node]:
        connected = [agent for agent in self.links.all() if agent.outbox and not agent.leaving]
        return [self.node(agent.hello) for agent in connected if self.readiness.fits(agent.node)]

    def is_leaving(self, node: str) -> bool:
        return any(agent.node == node and agent.leaving for agent in self.links.all())

    def want(self, runs: int, slots: int) -> None:
        if refused := self.links.refused or self.readiness.refused:
            raise DetError(refused)
        for request in self.requests(runs, slots) if runs > 0 else ():
            self.ask(request, self._command(request))
            self.asked[request.name] = request.nodes, time.monotonic()
        if runs <= 0:
            self.links.release_idle(_IDLE_SECONDS)

    def _command(self, request: AllocationRequest) -> AgentCommand:
        start = AgentStart(
            name=request.name,
            key=read_secret(self.context.directory).hex(),
            directory=self.directory(request),
            driver=self.links.address,
            driver_file=(
                self.context.directory / "driver.json" if self.shared or self.context.seen else None
            ),
            host=self.workers_host(request),
            shared=self.shared,
        )
        return AgentCommand(argv=self.python(), start=encode_start(start) + b"\n")

    def start(self, spec: RunSpec) -> None:
        connected = {agent.node: agent for agent in self.links.all()}
        if not self.shared:
            spec = msgspec.structs.replace(spec, code=self._pack(spec.code_dir)[0])
        parts = (
            split(spec, {node: agent.hello.address for node, agent in connected.items()})
            if spec.world_size
            else [spec]
        )
        if not {part.node for part in parts} <= connected.keys():
            raise OSError(errno.EAGAIN, "its machine has just gone")
        for part in parts:
            self.links.start(connected[part.node], part, lambda: self._pack(spec.code_dir)[1])

    def signal(self, run: int, number: Signals) -> None:
        self.links.order(run, SignalRun(run, int(number)))

    def preempt(self, run: int, reason: str) -> None:
        self.links.order(run, PreemptRun(run, reason))

    def reply(self, run: int, link: int, reply: Reply) -> None:
        self.links.order(run, WorkerReply(link, reply))

    def acknowledge(self, run: int, link: int, number: int) -> None:
        self.links.order(run, MessageAck(link, number))

    def acknowledge_end(self, run: int) -> None:
        self.links.acknowledge_end(run)

    def end_runs(self) -> None:
        for agent in self.links.all():
            agent.order(EndRuns())

    def close(self) -> None:
        if self._links is None:
            return
        pending = [name for name in list(self.asked) if self.is_pending(name)]
        self.end_runs()
        deadline = time.monotonic() + _END_SECONDS
        while any(agent.outbox for agent in self.links.all()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 5)
        for name in pending:
            self.drop(name)
        self.detach()

    def detach(self) -> None:
        """Close the connections to the agents, which continue as after the death of a driver."""
        self._closing.set()
        if self._links is not None:
            self._links.close()
            self._links = None

    def stop_detached(self, context: EngineContext, *, at_once: bool) -> bool:
        self.context = context
        for name in self._find_allocations():
            self.drop(name, at_once=at_once)
        deadline = time.monotonic() + _END_SECONDS
        while (left := self._find_allocations()) and at_once and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return not left

    def _find_allocations(self) -> list[str]:
        return [
            name
            for name, allocation in self.look().items()
            if allocation.state is not AllocationState.ENDED
        ]

    def _watch(self) -> None:
        """Send heartbeats, and give up agents that are gone."""
        pause = _WATCH_SECONDS
        while not self._closing.wait(min(self.context.lease / _BEATS or pause, pause)):
            if (links := self._links) is None:
                return
            # Hundreds of experiments may wait, each with an agent.
            pause = _WATCH_IDLE_SECONDS if links.is_idle else _WATCH_SECONDS
            self._retry_failed_starts(links)
            links.end_doomed_runs()
            for agent in links.all():
                if self.fenced:
                    agent.order(Heartbeat())
                if self._is_lost(agent):
                    self.asked.pop(agent.hello.name, None)
                    links.mark_lost(agent)

    def _is_lost(self, agent: Linked) -> bool:
        if (
            self.fenced
            and time.monotonic() - agent.last_received > self.context.lease + MARGIN_SECONDS
        ):
            return True
        return agent.outbox is None and self.dead(agent.hello.name, agent.hello.node)

    def _retry_failed_starts(self, links: Links) -> None:
        """Request again what ended before it connected, at growing intervals.

        Report an error instead after several failures while no agent is connected.
        """
        waited = time.monotonic() - min(2.0**self._failed_starts, 60.0)
        failed = [
            n
            for n, (_, at) in list(self.asked.items())
            if at < waited and not self.is_connected(n) and self.dead(n, 0)
        ]
        for name in failed:
            self.asked.pop(name)
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS and not links.all():
                links.refused = f"no agent could be started; {last_line(self.log(name))}"
            self.on_event(NodeLost(f"{name}/0"))
