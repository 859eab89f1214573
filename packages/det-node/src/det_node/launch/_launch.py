"""One launch, from the start of the agents to the exit status."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NoReturn

from det_core.errors import DetError
from det_core.ranks.backend import Ranks, rank_variables
from det_core.ranks.launcher import Launcher, Layout, Place
from det_core.support.threads import start_thread
from det_core.train.failure import summary

from ..agent import (
    AgentEnded,
    AgentError,
    AgentHello,
    Ended,
    EndRuns,
    Heartbeat,
    LogChunk,
    PortsReserved,
    ReservePorts,
    RunConnected,
    RunSpec,
    SignalRun,
    StartRun,
)
from ..group import cannot_start
from ..machine import reserved
from ._agents import HostAgent, Received
from ._hosts import LOCAL
from ._output import Failures, Files, Prefixed, Tails, say
from ._plan import START_SECONDS, Plan

_START_SECONDS = 60.0
_LEAVE_SECONDS = 5.0
_AGAIN_SECONDS = 5.0
_GRACE_SECONDS = 5.0
# Messages that wait while the output is blocked.
_MOST_WAITING = 64
SILENCE_SECONDS = 60.0
"""After how long a silent host is given up, and a host without its launcher gives up."""


class Launch:
    """The ranks of one launch. Rank k is the run k of its host's agent.

    `run` starts them and returns the exit status when all have ended.
    """

    def __init__(self, launcher: Launcher, plan: Plan, out: BinaryIO) -> None:
        self._launcher, self._plan = launcher, plan
        self._output = Files(plan.log_dir) if plan.log_dir else Prefixed(out, prefix=plan.prefix)
        self._tails = Tails()
        self._failures = Failures(self._tails)
        self._inbox: queue.Queue[Received] = queue.Queue(_MOST_WAITING)
        # Numbers of signals. The handler must not block.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._agents: list[HostAgent] = []
        # The ranks that have not ended, and their agents.
        self._running: dict[int, HostAgent] = {}
        self._leaving: set[HostAgent] = set()
        self._waited_for: set[int] = set()
        self._deadline: float | None = None
        self._kill_at: float | None = None
        self._passed_on: list[int] = []
        self._passed_on_at = 0.0
        self._ending = self._late = False
        self._over = threading.Event()

    def run(self) -> int:
        """Start the ranks, forward their output, and return the first failure's status, or 0."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals_caught())
            if isinstance(self._output, Files):
                stack.callback(self._output.close)
            stack.callback(self._close)
            for host in self._plan.hosts:
                self._agents.append(HostAgent(host, self._plan.agent, SILENCE_SECONDS, self._inbox))
            # Agents that wait for another host to answer need heartbeats, too.
            start_thread(
                self._send_heartbeats,
                name="det-launch-heartbeat",
                failed=lambda error: self._inbox.put((self._agents[0], error)),
            )
            self._prepare()
            layout = self._plan.layout([agent.reserved.ports for agent in self._agents])
            with self._launcher.meeting(layout) as variables:
                self._start(self._plan.specs(self._launcher, layout, variables, self._agents))
                self._watch()
                self._close()
        if self._output.failure:
            say(f"what the ranks printed is lost ({self._output.failure})")
        return self._status()

    def _close(self) -> None:
        self._over.set()
        for agent in self._agents:
            agent.hang_up()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._agents:
            self._agents.pop().wait(deadline)

    # The start

    def _prepare(self) -> None:
        """Wait for every agent, and for the ports that it has reserved."""
        deadline = time.monotonic() + (self._plan.start_timeout or _START_SECONDS)
        while waiting := [agent for agent in self._agents if not agent.reserved.ports]:
            if not self._signals.empty():
                raise KeyboardInterrupt
            try:
                agent, message = self._inbox.get(
                    timeout=min(0.1, max(0.0, deadline - time.monotonic()))
                )
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                name = waiting[0].host.name
                raise DetError(
                    f"the host {name!r} did not answer in time; see --agent, --hosts and"
                    " --start-timeout"
                ) from None
            match message:
                case AgentHello():
                    agent.here = message
                    agent.order(self._ports(agent))
                case PortsReserved(refused=""):
                    agent.reserved = message
                case PortsReserved() | AgentError() | BaseException():
                    raise _error(message)

    def _ports(self, agent: HostAgent) -> ReservePorts:
        n = self._agents.index(agent)
        return ReservePorts(agent.host.slots + (n == 0), self._plan.port, self._plan.towards(n))

    def _start(self, specs: Sequence[tuple[HostAgent, RunSpec]]) -> None:
        for agent, spec in specs:
            self._running[spec.run_id] = agent
            agent.order(StartRun(spec))
        self._waited_for = {spec.run_id for _, spec in specs if spec.port is not None}
        if self._plan.start_timeout is not None and self._waited_for:
            self._deadline = time.monotonic() + self._plan.start_timeout

    def _send_heartbeats(self) -> None:
        """Send heartbeats, also while the output is blocked."""
        while not self._over.wait(SILENCE_SECONDS / 8):
            for agent in self._agents.copy():
                agent.order(Heartbeat())

    # Until the end

    def _watch(self) -> None:
        """Handle messages until all agents have sent their last one."""
        looked = time.monotonic()
        while self._running or len(self._leaving) < len(self._agents):
            with contextlib.suppress(queue.Empty):
                self._handle(*self._inbox.get(timeout=self._pause()))
            while not self._signals.empty():
                self._pass_on(self._signals.get())
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                self._too_late()
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                self._signal(signal.SIGKILL)
            # Where this process itself was stopped, messages wait to be received.
            if now - looked < SILENCE_SECONDS / 2:
                self._look_for_silence(now)
            looked = now

    def _look_for_silence(self, now: float) -> None:
        for agent in set(self._agents) - self._leaving:
            if now - agent.received_at > SILENCE_SECONDS:
                raise DetError(
                    f"the host {agent.host.name!r} has said nothing for {SILENCE_SECONDS:g} s; it"
                    " is frozen or cannot be reached, and all ranks are ended"
                )

    def _pause(self) -> float:
        now = time.monotonic()
        times = [max(0.0, at - now) for at in (self._deadline, self._kill_at) if at is not None]
        # A signal wakes the main thread, but not the queue.
        return min([0.1, *times])

    def _handle(self, agent: HostAgent, message: object) -> None:
        match message:
            case LogChunk(run, _, _, data):
                self._output.write(run, data)
                self._tails.write(run, data)
            case RunConnected(run):
                if self._deadline is None:
                    self._deadline = time.monotonic() + START_SECONDS
                self._no_longer_waited_for(run)
            case Ended():
                self._ended(message)
            case AgentError():
                raise _error(message)
            case AgentEnded() | BaseException() if agent not in self._running.values():
                self._leaving.add(agent)
            case BaseException():
                raise _error(message)

    def _ended(self, ended: Ended) -> None:
        if ended.unstartable or ended.unstarted:
            raise DetError(ended.unstartable or ended.unstarted)
        self._no_longer_waited_for(ended.run)
        del self._running[ended.run]
        if ended.status:
            was_ended = self._ending or len(self._passed_on) > 1 or ended.fenced
            self._failures.add(ended.run, ended.status, was_ended=was_ended)
            self._end_all()
        if not self._running:
            for agent in self._agents:
                agent.order(EndRuns())

    def _no_longer_waited_for(self, rank: int) -> None:
        self._waited_for.discard(rank)
        if not self._waited_for:
            self._deadline = None

    def _too_late(self) -> None:
        late, patience = min(self._waited_for), self._plan.patience
        say(f"rank {late} did not come to meet the others within {patience:g} s; all are ended")
        self._deadline, self._late = None, True
        self._end_all()

    def _end_all(self) -> None:
        """End the ranks of every host, once: they get SIGTERM, and SIGKILL after a while."""
        if not self._ending:
            self._ending = True
            self._kill_at = time.monotonic() + _GRACE_SECONDS
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for rank, agent in self._running.items():
            agent.order(SignalRun(rank, number))

    def _pass_on(self, number: int) -> None:
        """Forward the first signal to the ranks, and kill them at the second.

        A second SIGTERM within a few seconds is ignored, as a scheduler may send two at once.
        """
        now = time.monotonic()
        if not self._passed_on:
            self._passed_on_at = now
            say(f"{signal.Signals(number).name} is passed on to the ranks; a second one kills them")
        elif number == signal.SIGTERM and now - self._passed_on_at < _AGAIN_SECONDS:
            return
        self._signal(signal.SIGKILL if self._passed_on else number)
        self._passed_on.append(number)

    def _status(self) -> int:
        if self._late:
            return 1
        if self._failures:
            return self._failures.report(size=self._plan.size, passed_on=self._passed_on)
        return 128 + self._passed_on[0] if self._passed_on and self._ending else 0

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        """Queue SIGINT and SIGTERM inside the context."""
        before = {
            number: signal.signal(number, lambda number, _: self._signals.put(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _error(message: PortsReserved | AgentError | BaseException) -> DetError:
    match message:
        case PortsReserved(refused=refused):
            return DetError(refused)
        case AgentError(reason):
            return DetError(f"the ranks are not supervised any more: {reason}")
        case DetError():
            return message
        case _:
            return DetError(f"the ranks are not supervised any more: {summary(message)}")


def become(launcher: Launcher, plan: Plan) -> NoReturn:
    """Replace this process by the only rank of a world of one."""
    with reserved(1, plan.port) as ports:
        place = Place(ranks=Ranks(), host=plan.chief_ip or LOCAL, port=ports[0])
        layout = Layout(places=[place], here=place.host, start_timeout=plan.patience)
        with launcher.meeting(layout) as variables:
            environ = {
                **plan.environ,
                **rank_variables(place.ranks),
                "DET_CHIEF_IP": place.host,
                **variables[0],
            }
    try:
        os.execvpe(plan.argv[0], list(plan.argv), environ)
    except OSError as error:
        raise cannot_start(plan.argv, plan.cwd, error) from error
