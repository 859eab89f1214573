"""Runs by agents: an engine of this kind only places them, and all else is the same wherever they are."""

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
from functools import cache
from pathlib import Path
from signal import Signals

import msgspec

from det_core.agent import (
    AgentStart,
    Answered,
    Attach,
    Beat,
    Here,
    LetGo,
    PreemptRun,
    RunSpec,
    SignalRun,
    Taken,
    encode_start,
    pack,
)
from det_core.errors import DetError
from det_core.launch import say
from det_core.protocol import Answer, welcome

from ._gangs import split
from ._links import Linked, Links, make_own, secret_of
from .base import Engine, Hears, Lost, Node, Site
from .claims import AgentCommand, Claim, Granted, Standing, last_line
from .preparing import PREPARATIONS, Readiness

MARGIN_SECONDS = 3.0
"""How much longer than a lease a driver waits, as clocks differ and an agent looks at its own now and then."""
SHORTEST_LEASE = 5.0
"""Seconds; where a lease fences, a shorter one would end runs whenever a machine is busy."""
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05
_BEATS = 8  # in the time of a lease
_IDLE_SECONDS = 120.0
_MOST_UNBORN = 3


class AgentEngine(Engine):
    """Runs of an experiment by agents that connect to this driver; who derives from it says where agents are placed.

    With `fenced`, an agent that cannot be reached may go on: its runs are given up when its lease has ended, as it ends
    them by then. With `shared`, agents see the directories of this machine. With `carried`, the engine brings their connections
    here, from wherever they are, and through whatever: they are under TLS on loopback, too.
    """

    fenced = True
    shared = False
    carried = False

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self.asked: dict[str, tuple[int, float]] = {}
        """The claims that were asked for and have not ended: of how many machines, and when, of the monotonic clock."""
        self.site: Site
        self.readiness: Readiness  # of machines
        self._links: Links | None = None
        self._pack = cache(pack)  # of what never changes: an experiment's code, and the files of its environment
        self._unborn, self._closing = 0, threading.Event()

    # Where agents are placed

    @abstractmethod
    def ask(self, claim: Claim, command: AgentCommand) -> None:
        """Have agents started as soon as there is room; returns at once, and asking again by the same name is harmless."""

    @abstractmethod
    def drop(self, name: str, *, at_once: bool = False) -> None:
        """Give up a claim, waiting or running: its agents are sent SIGTERM, or killed; harmless when it has ended."""

    @abstractmethod
    def look(self) -> Mapping[str, Granted]:
        """Return the claims of this experiment by name, whoever asked for them."""

    @abstractmethod
    def dead(self, name: str, node: int) -> bool:
        """Tell whether nothing of an agent's runs any more on its machine, for certain."""

    def claims(self, runs: int, slots: int) -> list[Claim]:
        """Return what to ask for, for so many runs more: a claim each, or machines of the settings' `slots_per_node` slots."""
        each: int = getattr(self.site.settings, "slots_per_node", None) or max(slots, 1)
        count = -(-runs // max(each // max(slots, 1), 1)) - sum(map(self.comes, list(self.asked)))
        return [Claim(name=self.new_name(), slots=each, nodes=max(-(-slots // each), 1)) for _ in range(count)]

    def comes(self, name: str) -> bool:
        """Tell whether some of a claim's agents are still to come, or to be tried: some may have a machine before others."""
        there = {a.node for a in self.links.all() if a.leaving or self.readiness.fits(a.node)}
        nodes, _ = self.asked.get(name, (0, 0.0))
        return any(f"{name}/{k}" not in there and not self.dead(name, k) for k in range(nodes))

    def new_name(self) -> str:
        """Return a name for a claim that no other one ever has."""
        return f"{self.site.name}-{secrets.token_hex(4)}"

    def address(self) -> str:
        """Return the address at which agents reach this process."""
        return "127.0.0.1"

    def directory(self, claim: Claim) -> Path:
        """Return the directory in which an agent keeps what is its own; by default the one of the settings."""
        return Path(getattr(self.site.settings, "directory", self.site.directory))

    def workers_host(self, claim: Claim) -> str:
        """Return the address at which workers reach their agent."""
        return "127.0.0.1"

    def python(self) -> tuple[str, ...]:
        """Return the command that is an agent; by default of the Python that the settings name."""
        return (getattr(self.site.settings, "python", None) or sys.executable, "-P", "-m", "det_core.agent", "-")

    def environ(self) -> Mapping[str, str] | None:
        """Return the environment of runs, None for their agent's own: this process's, where agents see its files."""
        return dict(os.environ) if self.shared else None

    def joined(self, here: Here) -> None:
        """An agent has come."""

    def node(self, here: Here) -> Node:
        """Return the machine of an agent."""
        name = f"{here.name}/{here.node}"
        return Node(name, tuple(f"{name}/{device}" for device in here.devices), here.gpus, machine=here.machine)

    def log(self, name: str) -> str:
        """Return where an agent's own words are."""
        return str(self.site.directory / "agent.log")

    # An engine

    @property
    def links(self) -> Links:
        """The agents that have come, from `open` on."""
        assert self._links
        return self._links

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        self.site = replace(site, lease=max(site.lease, SHORTEST_LEASE)) if self.fenced else site
        make_own(site.directory)
        self.readiness, noted = Readiness(self, site, here=self.shared), site.directory / "driver.json"
        key, sealed, attach, hear = secret_of(site.directory), self.carried, self._attach, self.readiness.hear
        self._links = Links(key, self.address(), noted, sealed=sealed, hears=hear, attach=attach, joined=self.joined)
        self.preparing, self.together = self.readiness.awaited, self._links.together
        threading.Thread(target=self._watch, daemon=True, name="det-beats").start()
        claims = {n: claim for n, claim in self.look().items() if claim.standing is not Standing.ENDED}
        there = [(n, k) for n, c in claims.items() if c.standing is Standing.RUNNING for k in range(c.nodes)]
        self.asked = {n: (claim.nodes, time.monotonic()) for n, claim in claims.items()}
        self._wait_for(there)
        self.links.give_up_what_is_partial()
        return tuple(spec for spec in self.links.runs() if spec.run_id < PREPARATIONS)

    def _attach(self, logs: dict[int, dict[str, int]]) -> Attach:
        self._unborn, ours = 0, welcome()
        return Attach(ours.protocol, ours.version, self.environ(), self.site.lease, self.fenced, logs)

    def _wait_for(self, agents: list[tuple[str, int]]) -> None:
        """Wait until each of these agents has come, or has certainly ended its runs."""
        began, said, most = time.monotonic(), False, self.site.lease + MARGIN_SECONDS
        while missing := {name for name, k in agents if not self.came(name, k) and not self.dead(name, k)}:
            if self.links.refused:
                raise DetError(self.links.refused)
            if (waited := time.monotonic() - began) > most:
                return
            if waited > 1.0 and not said:
                said = True
                say(f"waiting for {', '.join(sorted(missing))}, which may still train; {most:.0f} s at most")
            time.sleep(_POLL_SECONDS)

    def came(self, name: str, node: int | None = None) -> bool:
        """Tell whether an agent of this claim has connected, on that machine of it or on any, and is not lost."""
        there = [agent.here for agent in self._links.all()] if self._links is not None else []
        return any(here.name == name and node in (None, here.node) for here in there)

    def nodes(self) -> list[Node]:
        there = [agent for agent in self.links.all() if agent.outbox and not agent.leaving]
        return [self.node(agent.here) for agent in there if self.readiness.fits(agent.node)]

    def want(self, runs: int, slots: int) -> None:
        if refused := self.links.refused or self.readiness.refused:
            raise DetError(refused)
        for claim in self.claims(runs, slots) if runs > 0 else ():
            self.ask(claim, self._command(claim))
            self.asked[claim.name] = claim.nodes, time.monotonic()
        if runs <= 0:
            self.links.let_go_of_the_idle(_IDLE_SECONDS)

    def _command(self, claim: Claim) -> AgentCommand:
        start = AgentStart(
            name=claim.name,
            key=secret_of(self.site.directory).hex(),
            directory=self.directory(claim),
            driver=self.links.address,
            driver_file=self.site.directory / "driver.json" if self.shared or self.site.seen else None,
            host=self.workers_host(claim),
            shared=self.shared,
        )
        return AgentCommand(argv=self.python(), start=encode_start(start) + b"\n")

    def start(self, spec: RunSpec) -> None:
        there = {agent.node: agent for agent in self.links.all()}
        if not self.shared:
            spec = msgspec.structs.replace(spec, code=self._pack(spec.code_dir)[0])
        parts = split(spec, {node: agent.here.address for node, agent in there.items()}) if spec.of else [spec]
        if not {part.node for part in parts} <= there.keys():
            raise OSError(errno.EAGAIN, "its machine has just gone")
        for part in parts:
            self.links.start(there[part.node], part, lambda: self._pack(spec.code_dir)[1])

    def signal(self, run: int, number: Signals) -> None:
        self.links.order(run, SignalRun(run, int(number)))

    def preempt(self, run: int, reason: str) -> None:
        self.links.order(run, PreemptRun(run, reason))

    def answer(self, run: int, link: int, answer: Answer) -> None:
        self.links.order(run, Answered(link, answer))

    def taken(self, run: int, link: int, number: int) -> None:
        self.links.order(run, Taken(link, number))

    def settled(self, run: int) -> None:
        self.links.settle(run)

    def let_go(self) -> None:
        for agent in self.links.all():
            agent.order(LetGo())

    def close(self) -> None:
        if self._links is None:
            return
        coming = [name for name in list(self.asked) if self.comes(name)]
        self.let_go()
        deadline = time.monotonic() + _END_SECONDS
        while any(agent.outbox for agent in self.links.all()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 5)
        for name in coming:
            self.drop(name)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the agents as a driver does that is killed: they go on."""
        self._closing.set()
        if self._links is not None:
            self._links.close()
            self._links = None

    def dismiss(self, site: Site, *, at_once: bool) -> None:
        self.site = site
        for name in self._standing():
            self.drop(name, at_once=at_once)
        deadline = time.monotonic() + _END_SECONDS
        while at_once and self._standing() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _standing(self) -> list[str]:
        return [name for name, granted in self.look().items() if granted.standing is not Standing.ENDED]

    def _watch(self) -> None:
        """Beat, and give up agents that are gone."""
        while not self._closing.wait(min(self.site.lease / _BEATS, 0.25) or 0.25):
            if (links := self._links) is None:
                return
            self._give_up_the_unborn(links)
            links.look_after()
            for agent in links.all():
                if self.fenced:
                    agent.order(Beat())
                if self._gone(agent):
                    self.asked.pop(agent.here.name, None)
                    links.lose(agent)

    def _gone(self, agent: Linked) -> bool:
        if self.fenced and time.monotonic() - agent.heard > self.site.lease + MARGIN_SECONDS:
            return True
        return agent.outbox is None and self.dead(agent.here.name, agent.here.node)

    def _give_up_the_unborn(self, links: Links) -> None:
        """Ask again for what ended before it connected, less and less often, and not for ever where nobody is there."""
        waited = time.monotonic() - min(2.0**self._unborn, 60.0)
        unborn = [n for n, (_, at) in list(self.asked.items()) if at < waited and not self.came(n) and self.dead(n, 0)]
        for name in unborn:
            self.asked.pop(name)
            self._unborn += 1
            if self._unborn >= _MOST_UNBORN and not links.all():
                links.refused = f"no agent could be started; {last_line(self.log(name))}"
            self.hears(Lost(f"{name}/0"))
