"""The messages between a driver and an agent. A frame holds a list of them.

The driver sends an `Order`. The agent sends a `AgentEvent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..protocol import Envelope, Reply


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an agent, as JSON.

    The agent reads it from its standard input, or from a file that only its owner may read.

    - `name`: the allocation.
    - `node`: the number of the node in it.
    - `driver`: the address where the driver listens.
    - `driver_file`: a file with the driver's current address, which is used where it can be read.
    - `host`: the address at which workers reach the agent.
    - `stdio`: the driver is at the other end of the agent's standard input and output. It has no
      successor, so the agent ends with it.
    - `directory`: where the agent writes its note, and its own files. An agent without one writes
      neither.
    - `shared`: whether the agent sees the directories that the driver sees. Otherwise it keeps what
      it receives below `directory`.
    """

    name: str
    key: str
    directory: Path | None = None
    node: int = 0
    stdio: bool = False
    driver: tuple[str, int] | None = None
    driver_file: Path | None = None
    host: str = "127.0.0.1"
    shared: bool = True


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run, ready to be started, or the part of a run on one node.

    - `entrypoint`: `module:Class` for a trial class, a shell command line, or an argv.
    - `variables`: what is added to the environment of all processes.
    - `ranks`: what is added to the environment of each process. The output of process k goes to
      `log_dir/rank-k.log`.
    - `preload`: the modules that the code imports, where the run may be forked from a process that
      has imported its framework. None means that the run needs a new interpreter.
    - `launcher`: the argv of what starts the ranks, where they are on several hosts.
    - `devices`, `slots`: the ids of the devices leased for the run, which are these slots of
      `node`.
    - `environment`: the digest of the environment whose interpreter the run uses. Without one it
      uses `python`, or else the agent's interpreter.
    - `code`: the digest of the content of `code_dir`, where that has to be sent.
    - `world_size`, `first_rank`: the run's world size and the first rank on this node, where other
      ranks are on other nodes. Otherwise both are 0.
    - `foreground`: the run is one process, which executes the argv `entrypoint` in `code_dir`. Its
      output is sent as it is written, and kept nowhere. It is killed with the agent.
    - `defaults`: what a foreground run gets where the node's environment and `variables` lack it.
    - `port`: where a foreground run meets the other ranks. The agent reports when it has
      connected.
    """

    run_id: int
    entrypoint: str | tuple[str, ...]
    trial_class: bool
    code_dir: Path
    log_dir: Path
    variables: Mapping[str, str]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    preload: tuple[str, ...] | None = None
    launcher: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    node: str = ""
    code: str = ""
    environment: str = ""
    python: str = ""
    first_rank: int = 0
    world_size: int = 0
    foreground: bool = False
    defaults: Mapping[str, str] = {}
    port: int | None = None


class AgentHello(msgspec.Struct, frozen=True, kw_only=True, tag="agent-hello"):
    """The first message of an agent after it has connected.

    - `incarnation`: distinguishes this agent from every other one with the same allocation and
      node.
    - `address`: where other nodes reach this one.
    - `devices`: the ids of the node's devices.
    - `gpus`: their names as CUDA_VISIBLE_DEVICES takes them.
    - `cores`: how many cores its processes may use.
    - `codes`: the digests of the code that the agent keeps.
    - `runs`: the runs whose end the driver has not acknowledged.
    """

    protocol: int
    version: str
    name: str
    node: int
    incarnation: str
    pid: int
    machine: str
    address: str = ""
    devices: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    cores: int = 1
    codes: tuple[str, ...] = ()
    runs: tuple[RunSpec, ...] = ()


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """The driver's reply to `AgentHello`.

    - `environ`: the environment of the runs that it starts.
    - `lease`: in seconds. An agent without a driver for that long releases its runs.
    - `fenced`: the runs must have ended when the lease ends, as another node may then continue
      them.
    - `logs`: how many bytes of each log the driver has, by run and file.
    """

    protocol: int
    version: str
    environ: Mapping[str, str] | None
    lease: float
    fenced: bool = False
    logs: Mapping[int, Mapping[str, int]] = {}


class StartRun(msgspec.Struct, frozen=True, tag="start"):
    """Start a run."""

    spec: RunSpec


class SignalRun(msgspec.Struct, frozen=True, tag="signal"):
    """Signal the processes of a run. Does nothing when they have ended."""

    run: int
    number: int


class PreemptRun(msgspec.Struct, frozen=True, tag="preempt"):
    """Make the workers of a run save and end, including workers that have not connected yet.

    A script that is not connected gets SIGTERM.
    """

    run: int
    reason: str


class WorkerReply(msgspec.Struct, frozen=True, tag="worker-reply"):
    """A reply to one worker.

    It also acknowledges the worker's messages up to the reply's number.
    """

    link: int
    reply: Reply


class MessageAck(msgspec.Struct, frozen=True, tag="message-ack"):
    """An ack: the messages of a worker up to this number are committed."""

    link: int
    number: int


class RunAck(msgspec.Struct, frozen=True, tag="run-ack"):
    """The end of a run is committed, so the agent may forget the run."""

    run: int


class CodeTar(msgspec.Struct, frozen=True, tag="code"):
    """The code of runs that start next, as a tar."""

    digest: str
    tar: bytes


class ReservePorts(msgspec.Struct, frozen=True, tag="reserve-ports"):
    """Reserve ports for ranks until the agent ends: from `first` on, or any free ones.

    `towards` is the address of another host of the launch.
    """

    count: int
    first: int | None = None
    towards: str | None = None


class PortsReserved(msgspec.Struct, frozen=True, tag="ports-reserved"):
    """The reply to `ReservePorts`.

    - `interface`: the network interface on the route to the other host.
    - `refused`: why the ports cannot be reserved.
    """

    ports: tuple[int, ...] = ()
    interface: str | None = None
    refused: str = ""


class RunConnected(msgspec.Struct, frozen=True, tag="run-connected"):
    """A foreground run has connected to the port where the ranks meet."""

    run: int


class AgentEnded(msgspec.Struct, frozen=True, tag="agent-ended"):
    """The last message of an agent whose connection is its standard input and output.

    Its runs, and their output, have ended.
    """


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """A heartbeat, from either side."""


class EndRuns(msgspec.Struct, frozen=True, tag="end-runs"):
    """Make the runs save and end without a driver, then end the agent."""


class WorkerMessage(msgspec.Struct, frozen=True, tag="worker-message"):
    """A message of a worker. The agent sends it again to each new driver until it is acknowledged.

    `link` is the number of the worker's connection, unique in the experiment.
    """

    run: int
    rank: int
    link: int
    envelope: Envelope


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """All processes of a run have ended.

    The agent sends it to each new driver until it is acknowledged.

    - `status`: the exit status of the process that failed first, else 0. A signal is a negative
      status.
    - `rank`: the rank of that process.
    - `unstarted`: why no process could be started, where the node may be able to start one later.
    - `unstartable`: the same, where the node will never be able to.
    - `fenced`: the agent killed the run, as its lease had ended.
    """

    run: int
    status: int
    rank: int = 0
    unstarted: str = ""
    unstartable: str = ""
    fenced: bool = False


class LogChunk(msgspec.Struct, frozen=True, tag="log-chunk"):
    """What the processes of a run have written to a log, from byte `offset`."""

    run: int
    file: str
    offset: int
    data: bytes


class LoggedFile(msgspec.Struct, frozen=True, tag="logged"):
    """A whole file that a run has logged as an image, table or text.

    `path` is relative to the trial's folder of media.
    """

    run: int
    path: str
    data: bytes


class OpenTerminal(msgspec.Struct, frozen=True, tag="open-terminal"):
    """From an agent: a run serves a terminal. From a driver: a client waits for it."""

    run: int


class TerminalData(msgspec.Struct, frozen=True, tag="terminal-data"):
    """Bytes between the terminal of a run and its client, from either side.

    - `received`: how many bytes of the other side have been passed on, of all.
    - `closed`: this side ends, after all that it has sent before.
    """

    run: int
    data: bytes = b""
    received: int = 0
    closed: bool = False


class NodeLeaving(msgspec.Struct, frozen=True, tag="node-leaving"):
    """The node will be taken away. The runs have been asked to save and end."""

    reason: str


class AgentError(msgspec.Struct, frozen=True, tag="agent-error"):
    """An error of the agent that is not the failure of a run."""

    reason: str


Order = (
    StartRun
    | PreemptRun
    | SignalRun
    | WorkerReply
    | MessageAck
    | RunAck
    | CodeTar
    | ReservePorts
    | OpenTerminal
    | TerminalData
    | Heartbeat
    | EndRuns
)
AgentEvent = (
    WorkerMessage
    | Ended
    | LogChunk
    | LoggedFile
    | OpenTerminal
    | TerminalData
    | NodeLeaving
    | AgentError
    | PortsReserved
    | RunConnected
    | AgentEnded
    | Heartbeat
)


def _from_text(kind: type, value: Any) -> Any:
    return kind(value)


encode_frame = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_attach = msgspec.msgpack.Decoder(Attach).decode
decode_agent_hello = msgspec.msgpack.Decoder(AgentHello, dec_hook=_from_text).decode
decode_orders = msgspec.msgpack.Decoder(list[Order], dec_hook=_from_text).decode
encode_start = msgspec.json.Encoder(enc_hook=str).encode
decode_start = msgspec.json.Decoder(AgentStart, dec_hook=_from_text).decode
decode_agent_events = msgspec.msgpack.Decoder(list[AgentEvent]).decode
