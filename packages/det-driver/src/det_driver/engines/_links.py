"""The agents that have connected to this driver: what is sent to them and what they send."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from det_core.errors import DetError, StoreError, StoreUnwritable
from det_core.support.paths import NotRegularFile, read_regular
from det_core.support.threads import Failed
from det_core.train.media import Media
from det_node import wire
from det_node.agent import (
    AgentError,
    AgentHello,
    Attach,
    CodeTar,
    Ended,
    EndRuns,
    LogChunk,
    LoggedFile,
    NodeLeaving,
    OpenTerminal,
    Order,
    Outbox,
    RunAck,
    RunSpec,
    StartRun,
    TerminalData,
    WorkerMessage,
    decode_agent_events,
    decode_agent_hello,
    encode_frame,
)
from det_node.launch import say
from det_node.protocol import Envelope, Meet, welcome
from det_node.task import STATUS

from ._gangs import Gangs, missing, whole
from ._terminals import NodeTerminals
from .base import NodeJoined, NodeLost, OnEvent

_COMES_SECONDS = 60.0


@dataclass
class Linked:
    """An agent that has connected.

    `outbox` is None while it is not connected. `last_received` is when its last message arrived, of
    the monotonic clock.
    """

    hello: AgentHello
    outbox: Outbox | None
    last_received: float
    idle_since: float
    codes: set[str] = field(default_factory=set)
    leaving: bool = False

    @property
    def node(self) -> str:
        """The name of its node in the experiment."""
        return f"{self.hello.name}/{self.hello.node}"

    def order(self, order: Order) -> None:
        """Send an order. It is dropped while the agent is not connected.

        Orders that matter are sent again when the agent connects again.
        """
        if (outbox := self.outbox) is not None:
            outbox.send(order)

    def end_runs(self) -> None:
        """Dismiss the agent: it ends when its runs have ended."""
        self.leaving = True
        self.order(EndRuns())


class Links:
    """Listens for agents, if possible at the address of the previous driver, which they know.

    `attach` makes the reply to an agent's first message, and `joined` is called for that message.
    `adopt` returns what is taken over of a run that an agent on a node names.
    Messages and ends of runs go to `on_event` as they arrive.
    """

    def __init__(
        self,
        key: bytes,
        host: str,
        noted: Path,
        *,
        sealed: bool,
        on_event: OnEvent,
        attach: Callable[[dict[int, dict[str, int]]], Attach],
        joined: Callable[[AgentHello], None],
        adopt: Callable[[str, RunSpec], RunSpec] = lambda node, spec: spec,
        failed: Failed | None = None,
    ) -> None:
        self._on_event, self._attach, self._joined, self._adopt = on_event, attach, joined, adopt
        self._lock, self._agents = threading.RLock(), dict[str, Linked]()
        # The runs whose end is not committed, by run and node.
        self._specs: dict[int, dict[str, RunSpec]] = {}
        self._media: dict[int, Media] = {}
        # `lost`: the allocation requests with an agent that was given up.
        self._codes, self.lost = dict[str, Callable[[], bytes]](), set[str]()
        self._gangs = Gangs(self.order, on_event)
        self._terminals = NodeTerminals()
        self.refused = ""
        """What is wrong with an agent that has connected."""
        port = 0
        with suppress(OSError, ValueError, TypeError, LookupError):
            port = int(json.loads(read_regular(noted))[1])
        try:
            self._server = wire.Server(key, self._serve, host, port, sealed=sealed, failed=failed)
        except DetError:
            # Another process listens there by now.
            self._server = wire.Server(key, self._serve, host, sealed=sealed, failed=failed)
        self.address = self._server.address
        write_own(noted, json.dumps(self.address))

    def all(self) -> list[Linked]:
        """Return the agents that are connected or may connect again."""
        with self._lock:
            return list(self._agents.values())

    def runs(self) -> tuple[RunSpec, ...]:
        """Return the runs whose end is not committed."""
        with self._lock:
            return tuple(whole(list(parts.values())) for parts in self._specs.values())

    @property
    def is_idle(self) -> bool:
        """Whether there are agents, and none has a run."""
        with self._lock:
            return bool(self._agents) and not self._specs

    def release_idle(self, seconds: float) -> None:
        """Dismiss the agents that have had no run for `seconds`."""
        with self._lock:
            busy = {node for parts in self._specs.values() for node in parts}
        for agent in self.all():
            if agent.node not in busy and time.monotonic() - agent.idle_since > seconds:
                agent.end_runs()

    def of(self, run: int) -> list[Linked]:
        """Return the known agents that have a part of a run."""
        with self._lock:
            return [self._agents[node] for node in self._specs.get(run, ()) if node in self._agents]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Collect the messages to each agent inside the block and send them at its end."""
        with ExitStack() as stack:
            for outbox in filter(None, [agent.outbox for agent in self.all()]):
                stack.enter_context(outbox.together())
            yield

    def order(self, run: int, order: Order) -> None:
        """Send an order to the agents of a run.

        Agents that are gone are skipped, because their loss is reported separately.
        """
        for agent in self.of(run):
            agent.order(order)

    def start(self, agent: Linked, spec: RunSpec, code: Callable[[], bytes]) -> None:
        """Have an agent start a run.

        `code` returns the tar of the run's code, for an agent that lacks it.
        """
        with self._lock:
            self._codes[spec.code] = code
            self._specs.setdefault(spec.run_id, {})[spec.node] = spec
        self._start(agent, spec)

    def _start(self, agent: Linked, spec: RunSpec) -> None:
        if spec.code:
            # A run elsewhere that writes nothing has an empty directory of logs, not none.
            with suppress(OSError):
                spec.log_dir.mkdir(parents=True, exist_ok=True)
        if spec.code and spec.code not in agent.codes:
            agent.codes.add(spec.code)
            agent.order(CodeTar(spec.code, self._codes[spec.code]()))
        agent.order(StartRun(spec))

    def acknowledge_end(self, run: int) -> None:
        """Drop a run whose end is committed, here and at its agents."""
        for agent in self.of(run):
            agent.order(RunAck(run))
            agent.idle_since = time.monotonic()
        with self._lock:
            self._specs.pop(run, None)
            self._media.pop(run, None)
        self._gangs.release(run)

    def mark_lost(self, agent: Linked) -> None:
        """Give up an agent unless it has connected again.

        The others of its allocation are dismissed.
        """
        with self._lock:
            if self._agents.get(agent.node) is not agent:
                return
            del self._agents[agent.node]
            self.lost.add(agent.hello.name)
            others = [
                other for other in self._agents.values() if other.hello.name == agent.hello.name
            ]
        self._report_lost(agent.node)
        for other in others:
            other.end_runs()

    def _report_lost(self, node: str) -> None:
        self._on_event(NodeLost(node))
        with self._lock:
            parts = [parts for parts in self._specs.values() if node in parts]
        for each in parts:
            self._gangs.mark_lost(each, node)

    def end_partial_runs(self) -> None:
        """End the runs that have ranks on nodes from which no agent has connected."""
        with self._lock:
            partial = [run for run, parts in self._specs.items() if missing(parts.values())]
        for run in partial:
            self._gangs.doom(run, partial=True)

    def end_doomed_runs(self) -> None:
        """End the remaining parts of runs in which a part on another node has failed."""
        self._gangs.kill_doomed()

    def close(self) -> None:
        """Close all connections and stop listening."""
        self._server.close()
        self._terminals.close()
        with self._lock:
            self._agents.clear()

    # A thread for each agent

    def _serve(self, connection: wire.Connection) -> None:
        """Serve one agent. A message that cannot be read is reported and ends the connection."""
        try:
            self._serve_agent(connection)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            say(
                f"an agent at {connection.peer} says what cannot be read, and is heard no more:"
                f" {error}"
            )

    def _serve_agent(self, connection: wire.Connection) -> None:
        hello = decode_agent_hello(connection.recv(timeout=_COMES_SECONDS))
        ours = welcome()
        if hello.protocol != ours.protocol:
            self.refused = (
                f"the runs of this experiment go on under det-core {hello.version} (protocol"
                f" {hello.protocol}), and this is {ours.version} (protocol {ours.protocol}); wait"
                " until they have saved, or resume it with that version"
            )
            return
        node = f"{hello.name}/{hello.node}"
        adopted = [self._known(node, spec) or self._adopt(node, spec) for spec in hello.runs]
        hello = msgspec.structs.replace(hello, runs=tuple(adopted))
        connection.send(
            encode_frame(self._attach({spec.run_id: _sizes(spec) for spec in hello.runs}))
        )
        now, outbox = time.monotonic(), Outbox(connection)
        agent = Linked(hello, outbox, last_received=now, idle_since=now, codes=set(hello.codes))
        self._joined(hello)
        self._register(agent)
        try:
            while True:
                several = decode_agent_events(connection.recv())
                agent.last_received = time.monotonic()
                for event in several:
                    match event:
                        case NodeLeaving():
                            agent.leaving = True
                            say(f"no more runs are started on {hello.machine}: {event.reason}")
                        case AgentError():
                            say(f"the agent on {hello.machine}: {event.reason}")
                        case LogChunk():
                            self._write(event)
                        case LoggedFile():
                            self._keep_media(event)
                        case OpenTerminal() | TerminalData():
                            self._handle_terminal(event, agent)
                        case Ended() if parts := self._find_parts(event.run):
                            self._gangs.ended(parts, agent.node, event)
                        case WorkerMessage(envelope=Envelope(message=Meet(address))):
                            self._gangs.exchange_chief_address(event, address, agent)
                        case WorkerMessage() | Ended():
                            self._on_event(event)
        finally:
            agent.outbox = None
            self._close_terminals(agent)
            outbox.close()

    def _register(self, agent: Linked) -> None:
        running = {spec.run_id: spec for spec in agent.hello.runs}
        with self._lock:
            before = self._agents.get(agent.node)
            self._agents[agent.node] = agent
            known = [parts[agent.node] for parts in self._specs.values() if agent.node in parts]
            unstarted = [spec for spec in known if spec.run_id not in running]
            for spec in running.values():
                self._specs.setdefault(spec.run_id, {})[agent.node] = spec
        if before is not None and before.outbox is not None:
            before.outbox.close()
        if before is not None and before.hello.incarnation != agent.hello.incarnation:
            self._report_lost(agent.node)
        else:
            # The order was in flight when the connection was lost, and perhaps the code too.
            for spec in unstarted:
                self._start(agent, spec)
        self._on_event(NodeJoined(agent.node, tuple(running)))

    def _known(self, node: str, spec: RunSpec) -> RunSpec | None:
        """Return a run as this driver has started or adopted it."""
        with self._lock:
            return self._specs.get(spec.run_id, {}).get(node)

    def _find_parts(self, run: int) -> dict[str, RunSpec]:
        """Return the parts of a run that is on several nodes, else nothing."""
        with self._lock:
            parts = self._specs.get(run, {})
            return dict(parts) if any(spec.world_size for spec in parts.values()) else {}

    def _write(self, event: LogChunk) -> None:
        # Other files there say which processes the driver may end.
        if not event.file.endswith(".log") and event.file != STATUS:
            return
        # The disk may be full, or the run over. A log is worth less than the run.
        with suppress(OSError, StopIteration):
            spec = next(iter(self._specs.get(event.run, {}).values()))
            spec.log_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                spec.log_dir / Path(event.file).name,
                os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK,
                0o600,
            )
            with os.fdopen(descriptor, "wb"):
                os.pwrite(descriptor, event.data, event.offset)

    def _handle_terminal(self, event: OpenTerminal | TerminalData, agent: Linked) -> None:
        if isinstance(event, TerminalData):
            self._terminals.take(event)
            return
        run = event.run
        with self._lock:
            spec = self._specs.get(run, {}).get(agent.node)
        if spec is not None:
            # The agent may connect again before a client comes.
            self._terminals.serve(run, spec.log_dir, partial(self.order, run))

    def _close_terminals(self, agent: Linked) -> None:
        with self._lock:
            runs = [run for run, parts in self._specs.items() if agent.node in parts]
        self._terminals.close(runs)

    def _keep_media(self, event: LoggedFile) -> None:
        """Keep a file that a run has logged elsewhere, as its worker would have kept it here."""
        with self._lock:
            parts = list(self._specs.get(event.run, {}).values())
            if not parts or not (directory := parts[0].variables.get("DET_TENSORBOARD_DIR")):
                return
            media = self._media.setdefault(event.run, Media(Path(directory)))
        media.keep(event.path, event.data)


def _sizes(spec: RunSpec) -> dict[str, int]:
    """Return the size in bytes of each log of a run that this host has."""
    return {path.name: path.stat().st_size for path in spec.log_dir.glob("*.log")}


def make_own(directory: Path) -> None:
    """Make a directory that only its owner may read."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(f"{directory} cannot be made: {error.strerror}") from error


def write_own(file: Path, text: str) -> None:
    """Write a file atomically that only its owner may read."""
    temporary = file.with_name(f".{file.name}")
    try:
        temporary.touch(0o600)
        temporary.write_text(text)
        temporary.replace(file)
    except OSError as error:
        raise StoreUnwritable(f"{file} cannot be written: {error.strerror}") from error


def read_secret(directory: Path) -> bytes:
    """Return the secret that only an experiment's driver and its agents know.

    It is made by the first call. Raises StoreError for a file that holds none.
    """
    file = directory / "secret"
    if not file.exists():
        write_own(file, wire.new_key().hex())
    try:
        return bytes.fromhex(read_regular(file).decode())
    except (NotRegularFile, ValueError):
        raise StoreError(
            f"{file} holds no secret of det any more; restore it, or remove it: runs that still"
            " train then end, and begin again from their checkpoints"
        ) from None
