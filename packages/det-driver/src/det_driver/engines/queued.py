"""Allocation requests that wait in a queue, such as that of a cluster.

One thread submits them and polls their state.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from det_core.errors import DetError
from det_core.support.threads import start_thread
from det_node.agent import RunSpec
from det_node.launch import say

from .agents import MARGIN_SECONDS, AgentEngine
from .allocations import AgentCommand, Allocation, AllocationRequest, AllocationState
from .base import EngineContext, OnEvent
from .tcp_relays import Call, relay_connection

_Result = TypeVar("_Result")


class QueueEngine(AgentEngine):
    """Runs agents through a queue. A derived class finds, submits and cancels allocation requests.

    Each of these may take long. While the queue does not reply, the last known state holds.
    """

    pauses = (1.0, 10.0)
    """The shortest and longest interval in seconds between two polls of the queue.

    It is short while something changes or is requested, and grows otherwise.
    """

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        # The allocation requests of this process.
        self.mine: set[str] = set()
        self._due: dict[str, tuple[AllocationRequest, AgentCommand]] = {}
        # Replaced as a whole, never mutated, so that other threads may read it.
        self._found: Mapping[str, Allocation] = {}
        # When all processes of an agent will have ended (monotonic clock), 0 where they have.
        self._ends: dict[tuple[str, int], float] = {}
        self._looking, self._submitting, self._noted = (
            threading.Lock(),
            threading.Lock(),
            set[str](),
        )
        # Set where the state of the queue may have changed.
        self.soon = threading.Event()
        self.threads: list[threading.Thread] = []
        self.statuses: dict[tuple[str, int], int | None] = {}
        """Exit status of agents behind a TCP relay, by allocation and node, None where unknown."""
        self._ferried: set[tuple[str, int]] = set()

    # The interface of a queue

    @abstractmethod
    def find(self) -> dict[str, Allocation]:
        """Return the allocations of this experiment by name.

        Those that have ended are included for as long as the queue knows them. One thread at a time
        calls this, and repeats it while it raises ConnectionError: the queue does not reply.
        """

    @abstractmethod
    def submit(self, request: AllocationRequest, command: AgentCommand) -> str:
        """Submit an allocation request. Return an error message, or "".

        ConnectionError: it is submitted again later.
        """

    @abstractmethod
    def cancel(self, name: str, *, at_once: bool) -> None:
        """Cancel an allocation request in any state.

        Its agents get SIGTERM, or are killed with `at_once`. Nothing happens when it has ended.
        """

    def note(self, *lines: str) -> None:
        """Log lines of the queue, each once. The last is shown where no agent can be started."""
        if new := [line for line in lines if line and line not in self._noted]:
            self._noted.update(new)
            with open(self.log(""), "a") as log:
                log.writelines(f"{line}\n" for line in new)

    def patiently(self, ask: Callable[[], _Result]) -> _Result:
        """Call `ask` until it raises neither ConnectionError nor TimeoutError. Return its result.

        DetError: the engine is closing.
        """
        message = ""
        while True:
            try:
                return ask()
            except (ConnectionError, TimeoutError) as error:
                if not message:
                    say(message := f"{error}; it is waited for")
            if self._closing.wait(self.pauses[0]):
                raise DetError(message)

    def begin(self, what: Callable[..., None], *arguments: object) -> None:
        """Run a function in a new thread."""
        self.threads.append(
            start_thread(
                what, *arguments, name="det-queue", failed=partial(self.broke, "det-queue")
            )
        )

    def ferry(self, name: str, node: int, calls: Callable[[], Call]) -> None:
        """Relay the connection of an agent to this process. Only the first call has an effect.

        `calls` raises ValueError where the agent has just ended.
        """
        if self._links is not None and (name, node) not in self._ferried:
            self._ferried.add((name, node))
            with suppress(ValueError):
                self.begin(
                    relay_connection,
                    calls(),
                    self.links.address,
                    self._closing,
                    partial(self._ended, name, node),
                )

    def _ended(self, name: str, node: int, status: int | None, words: str) -> None:
        if status != 0:
            self.note(words)
        self.statuses[name, node] = status
        self.soon.set()

    def lost(self, name: str) -> bool:
        """Return whether agents of an allocation have connected and all of them were given up.

        A queue may learn that later.
        """
        return self._links is not None and name in self._links.lost and not self.is_connected(name)

    # An engine of agents

    def open(self, context: EngineContext) -> tuple[RunSpec, ...]:
        specs = super().open(context)
        self.begin(self._attend)
        return specs

    def ask(self, request: AllocationRequest, command: AgentCommand) -> None:
        if request.name not in self.mine:
            self.mine.add(request.name)
            self._due[request.name] = request, command
        self.soon.set()

    def drop(self, name: str, *, at_once: bool = False) -> None:
        with self._submitting:
            self._due.pop(name, None)
            nothing_to_save = self._links is not None and not self.is_connected(name)
            try:
                self.cancel(name, at_once=at_once or nothing_to_save)
            except (ConnectionError, TimeoutError) as error:
                say(
                    f"{name} could not be given up ({error}); what trains there ends with its lease"
                )

    def look(self) -> Mapping[str, Allocation]:
        self._refresh()
        due = {
            n: Allocation(name=n, state=AllocationState.WAITING, nodes=c.nodes)
            for n, (c, _) in list(self._due.items())
        }
        return {
            name: self._certain(allocation)
            for name, allocation in (due | dict(self._found)).items()
        }

    def dead(self, name: str, node: int) -> bool:
        """Return whether an agent has ended. An uncertain end counts one lease later.

        An agent that is connected then is given up when its messages stop.
        """
        if self.is_connected(name):
            self.soon.set()
        until = self._ends.get((name, node))
        return until is not None and (
            not until or (time.monotonic() > until and not self.is_connected(name, node))
        )

    def explain_wait(self) -> str:
        return ", ".join(
            sorted(
                {
                    g.reason
                    for g in self._found.values()
                    if g.state is AllocationState.WAITING and g.reason
                }
            )
        )

    def _certain(self, allocation: Allocation) -> Allocation:
        ended = (
            allocation.state is AllocationState.ENDED or len(allocation.gone) == allocation.nodes
        )
        dead = ended and all(self.dead(allocation.name, node) for node in range(allocation.nodes))
        state = AllocationState.ENDED if dead else AllocationState.RUNNING
        return replace(allocation, state=state) if ended else allocation

    def _attend(self) -> None:
        pause, (shortest, longest) = self.pauses[0], self.pauses
        while not self._closing.wait(shortest):
            self.soon.wait(pause - shortest)
            self.soon.clear()
            before = self._found
            # DetError: the driver ends, or may not ask now.
            with suppress(DetError):
                self._refresh()
                self._submit()
            pause = shortest if before != self._found else min(2 * pause, longest)

    def _refresh(self) -> None:
        with self._looking:
            found = self.patiently(self.find)
            # These ended long ago, or the queue was killed and has lost them.
            for name in self._found.keys() - found:
                was = self._found[name]
                gone = {
                    k: name in self.mine and not self.is_connected(name, k)
                    for k in range(was.nodes)
                } | dict(was.gone)
                found[name] = replace(was, state=AllocationState.ENDED, reason="", gone=gone)
            self._found, ends = found, {}
            unsure = time.monotonic() + self.context.lease + MARGIN_SECONDS
            for name, allocation in found.items():
                ended = (
                    dict.fromkeys(range(allocation.nodes), True)
                    if allocation.state is AllocationState.ENDED
                    else {}
                )
                for node, certain in (ended | dict(allocation.gone)).items():
                    ends[name, node] = 0.0 if certain else self._ends.get((name, node), unsure)
            self._ends = ends

    def _submit(self) -> None:
        for name, (request, command) in list(self._due.items()):
            with self._submitting:
                if name not in self._due:
                    continue
                wrong = self.patiently(partial(self.submit, request, command))
                state = AllocationState.ENDED if wrong else AllocationState.WAITING
                with self._looking:
                    self._found = {
                        **self._found,
                        name: Allocation(name=name, state=state, nodes=request.nodes),
                    }
                self._due.pop(name, None)
            self.note(wrong)
