"""What a driver and its agent say to each other: orders one way, what was heard of runs the other, several to a frame."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..protocol import Answer, Said


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told when it is started, as JSON, on its standard input or in a file that is its owner's alone.

    `name` is that of the claim, `node` the number of the machine in it. `driver` is where its driver listens; where that
    is not so any more, `driver_file` says where, if it is given and can be read. Workers reach the agent at `host`. With
    `shared` it sees the directories that the driver sees, and notes in `directory` that it is there; else it keeps what it
    is sent in a directory below that, of its own.
    """

    name: str
    key: str
    directory: Path
    node: int = 0
    driver: tuple[str, int] | None = None
    driver_file: Path | None = None
    host: str = "127.0.0.1"
    shared: bool = True


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run, ready to be started.

    `entrypoint` is `module:Class` for a trial class, a shell line, or an argv. `variables` are added to the environment.
    `ranks` holds, for each process, what its environment has beside that. The output of the process k goes to
    `log_dir/rank-k.log`. `warm` names the modules that the code imports, where the run may be a fork of a
    process that has imported its framework; None where it has to be a new interpreter. `launcher` is the argv of what starts the
    ranks, where they are on several hosts. `devices` are the ids of those that are leased for it, which are the `slots` of
    `node`. `environment` is the digest of the environment whose interpreter it has; without one it is `python`, or the agent's
    own. `code` is the digest of what is in `code_dir`, where that has to be sent. A part of a run, whose other ranks are on
    other machines, has `of` ranks of which `first` is the first one here.
    """

    run_id: int
    entrypoint: str | tuple[str, ...]
    trial_class: bool
    code_dir: Path
    log_dir: Path
    variables: Mapping[str, str]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    warm: tuple[str, ...] | None = None
    launcher: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    node: str = ""
    code: str = ""
    environment: str = ""
    python: str = ""
    first: int = 0
    of: int = 0


class Here(msgspec.Struct, frozen=True, kw_only=True, tag="here"):
    """The first words of an agent, whenever it has connected: who it is, what it speaks, and what it has.

    `incarnation` tells it from every other one that has, or had, the same claim and node. Other machines reach this one at
    `address`. `devices` are the ids of the machine's, `gpus` those of them that CUDA_VISIBLE_DEVICES takes; `codes` the digests
    of the code that it keeps.
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
    codes: tuple[str, ...] = ()
    runs: tuple[RunSpec, ...] = ()


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """The driver's answer: what it speaks, the environment of the runs that it starts, and the lease in seconds.

    When the agent has heard of no driver for that long, it lets its runs go; with `fenced` they have ended by then, as
    another machine may go on with them afterwards. `logs` is how much of the files of each run the driver has.
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
    """Signal the processes of a run; harmless when they have ended."""

    run: int
    number: int


class PreemptRun(msgspec.Struct, frozen=True, tag="preempt"):
    """Have the workers of a run, those too that are still to come, save and end; SIGTERM where a script has none."""

    run: int
    reason: str


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """To one worker; its word of that number and those before it are committed."""

    link: int
    answer: Answer


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The words of a worker up to this number are committed."""

    link: int
    number: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """That a run has ended is committed: it may be forgotten."""

    run: int


class CodeTar(msgspec.Struct, frozen=True, tag="code"):
    """The code of runs that are about to be started, as a tar."""

    digest: str
    tar: bytes


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Either side is there."""


class LetGo(msgspec.Struct, frozen=True, tag="let-go"):
    """Let the runs save and end by themselves, as if their driver were gone for good; then end."""


class Spoke(msgspec.Struct, frozen=True, tag="spoke"):
    """A worker has said something; told again to a new driver until it is taken.

    `link` is the number of its connection, and of no other one of the experiment's.
    """

    run: int
    rank: int
    link: int
    said: Said


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """All processes of a run have ended; told again to a new driver until it is settled.

    `status` is that of the process that failed first, whose `rank` is given, or 0; a signal is a negative status. `unstarted`
    says why none of them could be started, where the machine may be able to later; `unstartable`, where it never will.
    With `fenced` the agent has killed it, as the lease had ended.
    """

    run: int
    status: int
    rank: int = 0
    unstarted: str = ""
    unstartable: str = ""
    fenced: bool = False


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """What the processes of a run have written to a log, from `offset` on."""

    run: int
    file: str
    offset: int
    data: bytes


class Leaves(msgspec.Struct, frozen=True, tag="notice"):
    """The machine will be taken away; the runs have been asked to save and end."""

    reason: str


Order = StartRun | PreemptRun | SignalRun | Answered | Taken | Settled | CodeTar | Beat | LetGo
Told = Spoke | Ended | Wrote | Leaves | Beat


def _from_text(kind: type, value: Any) -> Any:
    return kind(value)


encode_frame = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_attach = msgspec.msgpack.Decoder(Attach).decode
decode_here = msgspec.msgpack.Decoder(Here, dec_hook=_from_text).decode
decode_orders = msgspec.msgpack.Decoder(list[Order], dec_hook=_from_text).decode
encode_start = msgspec.json.Encoder(enc_hook=str).encode
decode_start = msgspec.json.Decoder(AgentStart, dec_hook=_from_text).decode
decode_told = msgspec.msgpack.Decoder(list[Told]).decode
