"""Claims that wait in a queue, such as a cluster's: one thread hands them in, and looks for what has become of them."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from det_core.agent import RunSpec
from det_core.errors import DetError
from det_core.launch import say

from .agents import MARGIN_SECONDS, AgentEngine
from .base import Hears, Site
from .claims import AgentCommand, Claim, Granted, Standing
from .ferries import Call, carry

_Said = TypeVar("_Said")


class QueueEngine(AgentEngine):
    """Who derives from it says how claims are found, submitted and cancelled, each of which may take its time.

    Where the queue is silent, what was known last holds.
    """

    pauses = (1.0, 10.0)
    """The seconds between two looks at the queue: the fewest, where something changes or is wanted, and the most."""

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self.mine: set[str] = set()  # the claims that this process has asked for
        self._due: dict[str, tuple[Claim, AgentCommand]] = {}
        self._found: Mapping[str, Granted] = {}  # never changed, but replaced
        self._ends: dict[tuple[str, int], float] = {}  # when nothing of an agent goes on, of the monotonic clock
        self._looking, self._submitting, self._noted = threading.Lock(), threading.Lock(), set[str]()
        self.soon = threading.Event()  # to be set where there may be news
        self.threads: list[threading.Thread] = []
        self.statuses: dict[tuple[str, int], int | None] = {}
        """How agents have ended that are ferried, by claim and machine; None where that is not known."""
        self._ferried: set[tuple[str, int]] = set()

    # What a queue is

    @abstractmethod
    def find(self) -> dict[str, Granted]:
        """Return the claims of this experiment by name, with those that have ended for as long as the queue knows them.

        It is called by one thread at a time, and again for as long as it raises ConnectionError: the queue is silent.
        """

    @abstractmethod
    def submit(self, claim: Claim, command: AgentCommand) -> str:
        """Hand in a claim; return what is wrong with it, or nothing. ConnectionError has it tried again."""

    @abstractmethod
    def cancel(self, name: str, *, at_once: bool) -> None:
        """Take a claim back, wherever it is: its agents are sent SIGTERM, or killed; harmless when it has ended."""

    def note(self, *lines: str) -> None:
        """Write down what the queue says, once; the last line is shown where no agent can be started."""
        if new := [line for line in lines if line and line not in self._noted]:
            self._noted.update(new)
            with open(self.log(""), "a") as log:
                log.writelines(f"{line}\n" for line in new)

    def patiently(self, ask: Callable[[], _Said]) -> _Said:
        """Return what the queue says, which is waited for while it raises ConnectionError."""
        said = ""
        while True:
            try:
                return ask()
            except (ConnectionError, TimeoutError) as error:
                if not said:
                    say(said := f"{error}; it is waited for")
            if self._closing.wait(self.pauses[0]):
                raise DetError(said)

    def begin(self, what: Callable[..., None], *arguments: object) -> None:
        """Do something in a thread of its own."""
        thread = threading.Thread(target=what, args=arguments, daemon=True, name="det-queue")
        self.threads.append(thread)
        thread.start()

    def ferry(self, name: str, node: int, calls: Callable[[], Call]) -> None:
        """Carry the connection of an agent to this process, once; `calls` raises ValueError where it has just ended."""
        if self._links is not None and (name, node) not in self._ferried:
            self._ferried.add((name, node))
            with suppress(ValueError):
                self.begin(carry, calls(), self.links.address, self._closing, partial(self._ended, name, node))

    def _ended(self, name: str, node: int, status: int | None, words: str) -> None:
        if status != 0:
            self.note(words)
        self.statuses[name, node] = status
        self.soon.set()

    def lost(self, name: str) -> bool:
        """Tell whether agents of a claim have come, and all of them were given up, which a queue may not know for a while."""
        return self._links is not None and name in self._links.lost and not self.came(name)

    # An engine of agents

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        specs = super().open(site)
        self.begin(self._attend)
        return specs

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        if claim.name not in self.mine:
            self.mine.add(claim.name)
            self._due[claim.name] = claim, command
        self.soon.set()

    def drop(self, name: str, *, at_once: bool = False) -> None:
        with self._submitting:
            self._due.pop(name, None)
            nothing_to_save = self._links is not None and not self.came(name)
            try:
                self.cancel(name, at_once=at_once or nothing_to_save)
            except (ConnectionError, TimeoutError) as error:
                say(f"{name} could not be given up ({error}); what trains there ends with its lease")

    def look(self) -> Mapping[str, Granted]:
        self._refresh()
        due = {n: Granted(name=n, standing=Standing.WAITING, nodes=c.nodes) for n, (c, _) in list(self._due.items())}
        return {name: self._certain(granted) for name, granted in (due | dict(self._found)).items()}

    def dead(self, name: str, node: int) -> bool:
        """An agent that has come, and of whose end one is not certain, is given up as one that is not heard of."""
        if self.came(name):
            self.soon.set()
        until = self._ends.get((name, node))
        return until is not None and (not until or (time.monotonic() > until and not self.came(name, node)))

    def awaited(self) -> str:
        return ", ".join(
            sorted({g.reason for g in self._found.values() if g.standing is Standing.WAITING and g.reason})
        )

    def _certain(self, granted: Granted) -> Granted:
        ended = granted.standing is Standing.ENDED or len(granted.gone) == granted.nodes
        dead = ended and all(self.dead(granted.name, node) for node in range(granted.nodes))
        standing = Standing.ENDED if dead else Standing.RUNNING
        return replace(granted, standing=standing) if ended else granted

    def _attend(self) -> None:
        pause, (shortest, longest) = self.pauses[0], self.pauses
        while not self._closing.wait(shortest):
            self.soon.wait(pause - shortest)
            self.soon.clear()
            before = self._found
            with suppress(DetError):  # the driver ends, or may not ask for now
                self._refresh()
                self._submit()
            pause = shortest if before != self._found else min(2 * pause, longest)

    def _refresh(self) -> None:
        with self._looking:
            found = self.patiently(self.find)
            for name in self._found.keys() - found:  # it ended long ago, or a queue that was killed has forgotten it
                was = self._found[name]
                gone = {k: name in self.mine and not self.came(name, k) for k in range(was.nodes)} | dict(was.gone)
                found[name] = replace(was, standing=Standing.ENDED, reason="", gone=gone)
            self._found, ends = found, {}
            unsure = time.monotonic() + self.site.lease + MARGIN_SECONDS
            for name, granted in found.items():
                ended = dict.fromkeys(range(granted.nodes), True) if granted.standing is Standing.ENDED else {}
                for node, certain in (ended | dict(granted.gone)).items():
                    ends[name, node] = 0.0 if certain else self._ends.get((name, node), unsure)
            self._ends = ends

    def _submit(self) -> None:
        for name, (claim, command) in list(self._due.items()):
            with self._submitting:
                if name not in self._due:
                    continue
                wrong = self.patiently(partial(self.submit, claim, command))
                standing = Standing.ENDED if wrong else Standing.WAITING
                with self._looking:
                    self._found = {**self._found, name: Granted(name=name, standing=standing, nodes=claim.nodes)}
                self._due.pop(name, None)
            self.note(wrong)
