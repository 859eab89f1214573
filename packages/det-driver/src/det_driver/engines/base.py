"""The interface of an engine.

An engine starts a run's processes, reports when they end, can end them, and carries the messages of
their workers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals

from msgspec import Struct

from det_core.storage import Storage
from det_node.agent import AgentEvent, Relay, RunSpec
from det_node.protocol import Reply

from ..accounts import Account
from .allocations import Allocation

OnEvent = Callable[["AgentEvent | NodeJoined | NodeLost | EngineFailed"], None]


@dataclass(frozen=True)
class Probe:
    """What a node is checked for before its first trial.

    `storage` opens the checkpoint storage here, and `spec` is the run that does so on the node.
    """

    spec: RunSpec
    storage: Callable[[], Storage]


@dataclass(frozen=True)
class Preparation:
    """How the environment of an experiment's runs is made on a node.

    `spec` is the run that makes it. `ready` returns whether this host has it.
    """

    spec: RunSpec
    ready: Callable[[], bool]


@dataclass(frozen=True)
class Node:
    """A node that has room for runs: the ids of its devices, and those for CUDA_VISIBLE_DEVICES.

    Without `devices` it is this host, whose devices the driver knows. For a run on several nodes,
    these are the `parts`, and the ids are those of all parts in this order. `machine` is the name
    that users know.
    """

    name: str
    devices: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()
    parts: tuple[Node, ...] = ()
    machine: str = field(default_factory=lambda: os.uname().nodename)

    def host(self, devices: Sequence[str]) -> str:
        """Return the names, as users know them, of the nodes that have these devices."""
        return ", ".join(
            [part.machine for part in self.parts if part.name in map(machine_of, devices)]
            or [self.machine]
        )

    @classmethod
    def of(cls, parts: Sequence[Node]) -> Node:
        """Return several nodes as one."""
        devices = tuple(device for part in parts for device in part.devices or ())
        return cls("", devices, tuple(gpu for part in parts for gpu in part.gpus), tuple(parts))


def machine_of(device: str) -> str:
    """Return the node of a device of a run on several nodes. The id begins with the node's name."""
    return device.rpartition("/")[0]


@dataclass(frozen=True)
class NodeJoined:
    """A node has connected, for the first time or again. `runs` are the runs that it has."""

    node: str
    runs: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeLost:
    """A node is gone without a message. Its runs end by themselves, and may save."""

    node: str


@dataclass(frozen=True)
class EngineFailed:
    """A thread of the engine has failed. Without it the driver would wait forever."""

    thread: str
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class EngineContext:
    """The context of an engine.

    - `name`: a name of the experiment that is unique among all homes.
    - `directory`: where the engine keeps its files.
    - `host`: the address at which other hosts reach this one.
    - `lease`: how many seconds runs continue without a driver.
    - `seen`: other hosts may see the directory.
    - `settings`: the engine's part of the configuration.
    - `probe`: what other hosts must be able to do.
    - `preparation`: what is made on each node first.
    - `account`: as whom runs are started. They share no directory with the driver then.
    - `runs`: the directories of logs and of event files of the runs that have not ended, and
      `devices` the devices of this host. An engine with an `account` needs them.
    """

    name: str
    directory: Path
    host: str
    lease: float = 0.0
    seen: bool = False
    settings: Struct | None = None
    probe: Probe | None = None
    preparation: Preparation | None = None
    account: Account | None = None
    runs: Mapping[int, tuple[Path, Path]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


class Engine(ABC):
    """Starts runs, and passes their messages and ends to `on_event`, from any thread.

    By default, workers connect to this process, and they end with the driver.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.holder = os.getpid()
        """The process that holds the leases of devices."""
        self.fence = 0.0
        """For how many seconds runs may go on after that process has died."""
        self.preparing: Callable[[], str] = lambda: ""
        """Returns what runs wait for and its log, while their environment is made, else ""."""
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """Messages to nodes may be delayed to the end of the outermost block. Set by `open`."""
        self._relay: Relay | None = None

    def open(self, context: EngineContext) -> tuple[RunSpec, ...]:
        """Begin. Return the runs that an earlier driver started and that continue."""
        self._relay = Relay(context.host, self.on_event, failed=partial(self.broke, "det-wire"))
        return ()

    def broke(self, thread: str, error: BaseException) -> None:
        """Have the driver end because a thread of its engine has failed. Call it in that thread."""
        self.on_event(EngineFailed(thread, error))

    @property
    def relay(self) -> Relay:
        """Where workers connect. Available from `open` on."""
        assert self._relay
        return self._relay

    def nodes(self) -> list[Node]:
        """Return the nodes on which runs can be started now."""
        return [Node("")]

    def is_leaving(self, node: str) -> bool:
        """Return whether a node is about to be taken away, so that its runs end early."""
        return False

    def lease_key(self, device: str) -> str:
        """Return the id by which a node's device is leased, the same for each driver of a home."""
        return device

    def want(self, runs: int, slots: int) -> None:
        """Obtain room for `runs` more runs of `slots` devices each. Called repeatedly."""

    def explain_wait(self) -> str:
        """Return why there is no node yet, in the scheduler's words, or "" if unknown."""
        return ""

    @abstractmethod
    def start(self, spec: RunSpec) -> None:
        """Start a run's processes.

        OSError: the node cannot start them. If it only lacks a resource for now, the driver tries
        again.
        """

    @abstractmethod
    def signal(self, run: int, number: Signals) -> None:
        """Signal the processes of a run.

        SIGKILL also goes to all processes that they started. Nothing happens when they have ended.
        """

    def preempt(self, run: int, reason: str) -> None:
        """Have a run save a checkpoint and end. Nothing happens when it has ended."""
        self.relay.preempt(run, reason)

    def reply(self, run: int, link: int, reply: Reply) -> None:
        """Send the reply to a worker's request, which is committed."""
        self.relay.reply(link, reply)

    def acknowledge(self, run: int, link: int, number: int) -> None:
        """Acknowledge a worker's messages up to this sequence number, which are committed."""
        self.relay.acknowledge(link, number)

    def acknowledge_end(self, run: int) -> None:
        """Drop a run whose end is committed."""
        self.relay.release(run)

    def end_runs(self) -> None:
        """Let the runs save and end by themselves, as if their driver were gone."""
        self.relay.close()

    def stop_detached(self, context: EngineContext, *, at_once: bool) -> bool:
        """End the runs that train without a driver, after they have saved or `at_once`.

        Called instead of `open`. Returns whether they have certainly ended by now.
        """
        return False

    has_drivers = False
    """Whether a driver can be a job of the engine, which continues when this host is off."""

    def submit_driver(
        self, context: EngineContext, words: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> str:
        """Submit a job that runs Python with these arguments, and return its name.

        Another job follows when it ends. That job is canceled where Python ends by itself, so only
        a driver that was killed has a successor.
        """
        raise NotImplementedError

    def driver(self, context: EngineContext) -> Allocation:
        """Return the state of the driver's job."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the engine holds. Every run has ended."""
        if self._relay:
            self._relay.close()
