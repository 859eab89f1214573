"""What an engine is: it starts a run's processes, tells when they end, can end them, and carries the words of their workers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from msgspec import Struct

from det_core.agent import Relay, RunSpec, Told
from det_core.protocol import Answer
from det_core.storage import Storage

from .claims import Granted

Hears = Callable[["Told | Joined | Lost"], None]


@dataclass(frozen=True)
class Probe:
    """What a machine is tried for before its first trial: the storage that `storage` opens here, and `spec` there."""

    spec: RunSpec
    storage: Callable[[], Storage]


@dataclass(frozen=True)
class Preparation:
    """What makes the environment of an experiment's runs on a machine; `ready` tells whether it is on this one."""

    spec: RunSpec
    ready: Callable[[], bool]


@dataclass(frozen=True)
class Node:
    """A machine that has room for runs: the ids of its devices, and those that CUDA_VISIBLE_DEVICES takes.

    Without `devices` it is this machine, whose devices the driver knows. Where it is several that a run is spread over, these
    are its `parts`, and the ids theirs in this order. People know it as `machine`.
    """

    name: str
    devices: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()
    parts: tuple[Node, ...] = ()
    machine: str = field(default_factory=lambda: os.uname().nodename)

    def host(self, devices: Sequence[str]) -> str:
        """Return what people know those machines by that have these devices."""
        return ", ".join(
            [part.machine for part in self.parts if part.name in map(machine_of, devices)] or [self.machine]
        )

    @classmethod
    def of(cls, parts: Sequence[Node]) -> Node:
        """Return several machines as one."""
        devices = tuple(device for part in parts for device in part.devices or ())
        return cls("", devices, tuple(gpu for part in parts for gpu in part.gpus), tuple(parts))


def machine_of(device: str) -> str:
    """Return the machine of a device that is one of a run's on several machines, whose name begins its id."""
    return device.rpartition("/")[0]


@dataclass(frozen=True)
class Joined:
    """There is another machine, or one again; these are the runs that it has."""

    node: str
    runs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A machine is gone without a word, or what had its runs: they end by themselves, and may save."""

    node: str


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where an engine works: for which experiment, named so that no other one of any home has that name; in which directory.

    `host` is the address at which other machines reach this one, `lease` how many seconds runs go on without a driver,
    `settings` what the configuration has for the engine, `preparation` what is made on each machine first, and `probe` what
    other machines must be able to do. `seen` says that other machines may see the directory.
    """

    name: str
    directory: Path
    host: str
    lease: float = 0.0
    seen: bool = False
    settings: Struct | None = None
    probe: Probe | None = None
    preparation: Preparation | None = None


class Engine(ABC):
    """Starts runs, and tells `hears` of their words and ends, from any thread.

    Unless it says otherwise, workers talk to this process, and a driver that ends takes them with it.
    """

    def __init__(self, hears: Hears) -> None:
        self.hears = hears
        self.holder = os.getpid()
        """The process in whose name devices are leased."""
        self.preparing: Callable[[], str] = lambda: ""
        """For what runs wait whose environment is being made, and where that says how it goes; nothing otherwise."""
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """What is said to machines inside, from `open` on, may go at the end; inside another one, at the end of that."""
        self._relay: Relay | None = None

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        """Begin; return the runs that an earlier driver started and that go on."""
        self._relay = Relay(site.host, self.hears)
        return ()

    @property
    def relay(self) -> Relay:
        """Where workers connect, from `open` on."""
        assert self._relay
        return self._relay

    def nodes(self) -> list[Node]:
        """Return the machines that are there to start runs on."""
        return [Node("")]

    def want(self, runs: int, slots: int) -> None:
        """Have room for so many more runs of `slots` devices each, sooner or later; called now and then."""

    def awaited(self) -> str:
        """Return why there is no machine yet, in the words of who lends them; nothing where that is not known."""
        return ""

    @abstractmethod
    def start(self, spec: RunSpec) -> None:
        """Start a run's processes; OSError where the machine cannot, which is tried again where it is only out of something."""

    @abstractmethod
    def signal(self, run: int, number: Signals) -> None:
        """Signal the processes of a run, and with SIGKILL all that they started; harmless when they have ended."""

    def preempt(self, run: int, reason: str) -> None:
        """Have a run save and end; harmless when it has ended."""
        self.relay.preempt(run, reason)

    def answer(self, run: int, link: int, answer: Answer) -> None:
        """Answer a worker of a run, whose word is committed."""
        self.relay.answer(link, answer)

    def taken(self, run: int, link: int, number: int) -> None:
        """A worker's words up to this one are committed."""
        self.relay.taken(link, number)

    def settled(self, run: int) -> None:
        """That a run has ended is committed."""
        self.relay.forget(run)

    def let_go(self) -> None:
        """Let the runs save and end by themselves, as if their driver were gone."""
        self.relay.close()

    def dismiss(self, site: Site, *, at_once: bool) -> None:
        """Have what trains there without a driver save and end, or end at once; nobody calls `open`."""

    has_drivers = False
    """Whether a driver can be one of the engine's own jobs, which goes on when this machine is off."""

    def submit_driver(self, site: Site, words: Sequence[str], environ: Mapping[str, str], log: Path) -> str:
        """Submit a job that is Python with these words, after whose end another one begins; return its name.

        The job that comes next is given up where Python ends by itself, so only a driver that was killed has one.
        """
        raise NotImplementedError

    def driver(self, site: Site) -> Granted:
        """Return how the job stands."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the engine holds; every run has ended."""
        if self._relay:
            self._relay.close()
