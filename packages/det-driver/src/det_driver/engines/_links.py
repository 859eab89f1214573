"""The agents that have connected to this driver: what they are told, and what is heard of them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from det_core import wire
from det_core.agent import (
    Attach,
    CodeTar,
    Ended,
    Here,
    Leaves,
    LetGo,
    Order,
    Outbox,
    RunSpec,
    Settled,
    Spoke,
    StartRun,
    Wrote,
    decode_here,
    decode_told,
    encode_frame,
)
from det_core.errors import DetError, StoreUnwritable
from det_core.launch import say
from det_core.protocol import Meet, Said, welcome

from ._gangs import Gangs, missing, whole
from .base import Hears, Joined, Lost

_COMES_SECONDS = 60.0


@dataclass
class Linked:
    """An agent that has come: what it is told while it is connected, and when it was last heard of."""

    here: Here
    outbox: Outbox | None
    heard: float
    idle_since: float
    codes: set[str] = field(default_factory=set)
    leaving: bool = False

    @property
    def node(self) -> str:
        """The name of its machine among those of the experiment."""
        return f"{self.here.name}/{self.here.node}"

    def order(self, order: Order) -> None:
        """Say what is to be done; one that cannot be reached is told when it has connected again, where that matters."""
        if (outbox := self.outbox) is not None:
            outbox.tell(order)

    def let_go(self) -> None:
        """Dismiss it: it ends with the runs that it has."""
        self.leaving = True
        self.order(LetGo())


class Links:
    """Listens for agents, where the driver before this one did if that is possible, as they know that address.

    `attach` answers an agent's first words, and `joined` hears of it. Words and ends of runs go to `hears`, as they come.
    """

    def __init__(
        self,
        key: bytes,
        host: str,
        noted: Path,
        *,
        sealed: bool,
        hears: Hears,
        attach: Callable[[dict[int, dict[str, int]]], Attach],
        joined: Callable[[Here], None],
    ) -> None:
        self._hears, self._attach, self._joined = hears, attach, joined
        self._lock, self._agents = threading.RLock(), dict[str, Linked]()
        self._specs: dict[int, dict[str, RunSpec]] = {}  # of runs that are not settled, by machine
        self._codes, self.lost = dict[str, Callable[[], bytes]](), set[str]()  # claims an agent of which was given up
        self._gangs = Gangs(self.order, hears)
        self.refused = ""
        """What is wrong with an agent that has connected."""
        port = 0
        with suppress(OSError, ValueError):
            port = int(json.loads(noted.read_text())[1])
        try:
            self._server = wire.Server(key, self._serve, host, port, sealed=sealed)
        except DetError:  # another process listens there by now
            self._server = wire.Server(key, self._serve, host, sealed=sealed)
        self.address = self._server.address
        write_own(noted, json.dumps(self.address))

    def all(self) -> list[Linked]:
        """Return the agents that are there, or may be again."""
        with self._lock:
            return list(self._agents.values())

    def runs(self) -> tuple[RunSpec, ...]:
        """Return the runs that are not settled."""
        with self._lock:
            return tuple(whole(list(parts.values())) for parts in self._specs.values())

    def let_go_of_the_idle(self, seconds: float) -> None:
        """Dismiss the agents that have had no run for so long."""
        with self._lock:
            busy = {node for parts in self._specs.values() for node in parts}
        for agent in self.all():
            if agent.node not in busy and time.monotonic() - agent.idle_since > seconds:
                agent.let_go()

    def of(self, run: int) -> list[Linked]:
        """Return the agents that have a run, where they are known."""
        with self._lock:
            return [self._agents[node] for node in self._specs.get(run, ()) if node in self._agents]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Say to each agent at the end what it is told inside."""
        with ExitStack() as stack:
            for outbox in filter(None, [agent.outbox for agent in self.all()]):
                stack.enter_context(outbox.together())
            yield

    def order(self, run: int, order: Order) -> None:
        """Say to the agents of a run what is to be done; harmless where they are gone, which is heard of otherwise."""
        for agent in self.of(run):
            agent.order(order)

    def start(self, agent: Linked, spec: RunSpec, code: Callable[[], bytes]) -> None:
        """Have an agent start a run; `code` is the tar of its code, where that has to be sent."""
        with self._lock:
            self._codes[spec.code] = code
            self._specs.setdefault(spec.run_id, {})[spec.node] = spec
        self._start(agent, spec)

    def _start(self, agent: Linked, spec: RunSpec) -> None:
        if spec.code:
            with suppress(OSError):  # who is elsewhere and says nothing has empty logs, not none
                spec.log_dir.mkdir(parents=True, exist_ok=True)
        if spec.code and spec.code not in agent.codes:
            agent.codes.add(spec.code)
            agent.order(CodeTar(spec.code, self._codes[spec.code]()))
        agent.order(StartRun(spec))

    def settle(self, run: int) -> None:
        """Have a run forgotten."""
        for agent in self.of(run):
            agent.order(Settled(run))
            agent.idle_since = time.monotonic()
        with self._lock:
            self._specs.pop(run, None)
        self._gangs.forget(run)

    def lose(self, agent: Linked) -> None:
        """Give up an agent, unless it has connected again; the others of its claim are dismissed."""
        with self._lock:
            if self._agents.get(agent.node) is not agent:
                return
            del self._agents[agent.node]
            self.lost.add(agent.here.name)
            others = [other for other in self._agents.values() if other.here.name == agent.here.name]
        self._lost(agent.node)
        for other in others:
            other.let_go()

    def _lost(self, node: str) -> None:
        self._hears(Lost(node))
        with self._lock:
            parts = [parts for parts in self._specs.values() if node in parts]
        for each in parts:
            self._gangs.lost(each, node)

    def give_up_what_is_partial(self) -> None:
        """End the runs that have ranks on a machine of which nothing was heard."""
        with self._lock:
            partial = [run for run, parts in self._specs.items() if missing(parts.values())]
        for run in partial:
            self._gangs.doom(run, partial=True)

    def look_after(self) -> None:
        """End what is left of runs that cannot go on, as other machines have ended their part of them."""
        self._gangs.end_the_doomed()

    def close(self) -> None:
        """Hear of nobody any more."""
        self._server.close()
        with self._lock:
            self._agents.clear()

    # A thread for each agent

    def _serve(self, connection: wire.Connection) -> None:
        here = decode_here(connection.recv(timeout=_COMES_SECONDS))
        ours = welcome()
        if here.protocol != ours.protocol:
            self.refused = (
                f"the runs of this experiment go on under det-core {here.version} (protocol {here.protocol}), and this is "
                f"{ours.version} (protocol {ours.protocol}); wait until they have saved, or resume it with that version"
            )
            return
        connection.send(encode_frame(self._attach({spec.run_id: _sizes(spec) for spec in here.runs})))
        now, outbox = time.monotonic(), Outbox(connection)
        agent = Linked(here, outbox, heard=now, idle_since=now, codes=set(here.codes))
        self._joined(here)
        self._take_up(agent)
        try:
            while True:
                several = decode_told(connection.recv())
                agent.heard = time.monotonic()
                for told in several:
                    match told:
                        case Leaves():
                            agent.leaving = True
                            say(f"no more runs are started on {here.machine}: {told.reason}")
                        case Wrote():
                            self._write(told)
                        case Ended() if parts := self._several(told.run):
                            self._gangs.ended(parts, agent.node, told)
                        case Spoke(said=Said(word=Meet(address))):
                            self._gangs.meet(told, address, agent)
                        case Spoke() | Ended():
                            self._hears(told)
        finally:
            agent.outbox = None
            outbox.close()

    def _take_up(self, agent: Linked) -> None:
        there = {spec.run_id: spec for spec in agent.here.runs}
        with self._lock:
            before = self._agents.get(agent.node)
            self._agents[agent.node] = agent
            here = [parts[agent.node] for parts in self._specs.values() if agent.node in parts]
            unheard = [spec for spec in here if spec.run_id not in there]
            for spec in there.values():
                self._specs.setdefault(spec.run_id, {})[agent.node] = spec
        if before is not None and before.outbox is not None:
            before.outbox.close()
        if before is not None and before.here.incarnation != agent.here.incarnation:
            self._lost(agent.node)
        else:
            for spec in unheard:  # the order was on its way when the connection was lost, and perhaps its code
                self._start(agent, spec)
        self._hears(Joined(agent.node, tuple(there)))

    def _several(self, run: int) -> dict[str, RunSpec]:
        """Return the parts of a run that is on several machines."""
        with self._lock:
            parts = self._specs.get(run, {})
            return dict(parts) if any(spec.of for spec in parts.values()) else {}

    def _write(self, told: Wrote) -> None:
        with suppress(OSError, StopIteration):  # a full disk, a run that is over: a log is worth less than the run
            spec = next(iter(self._specs.get(told.run, {}).values()))
            spec.log_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(spec.log_dir / Path(told.file).name, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb"):
                os.pwrite(descriptor, told.data, told.offset)


def _sizes(spec: RunSpec) -> dict[str, int]:
    """Return how much of a run's logs is here."""
    return {path.name: path.stat().st_size for path in spec.log_dir.glob("*.log")}


def make_own(directory: Path) -> None:
    """Make a directory that nobody else may read."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(f"{directory} cannot be made: {error.strerror}") from error


def write_own(file: Path, text: str) -> None:
    """Write a file that nobody else may read, whole or not at all."""
    temporary = file.with_name(f".{file.name}")
    try:
        temporary.touch(0o600)
        temporary.write_text(text)
        temporary.replace(file)
    except OSError as error:
        raise StoreUnwritable(f"{file} cannot be written: {error.strerror}") from error


def secret_of(directory: Path) -> bytes:
    """Return what an experiment's driver and its agents know, and nobody else; made once."""
    file = directory / "secret"
    if not file.exists():
        write_own(file, wire.new_key().hex())
    return bytes.fromhex(file.read_text())
