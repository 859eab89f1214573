"""The agent: the only thing that starts the ranks of runs, one process for an experiment on a machine.

A driver starts it, or finds the one that an earlier driver left: workers talk to their agent, which keeps their words until
the driver has committed them. So a driver may be killed and replaced while training goes on. An agent that hears of no
driver for the time of its lease lets its runs save and end.
"""

from __future__ import annotations

from ._ferry import CHUNK, Ferry
from ._files import pack
from ._frames import (
    AgentStart,
    Answered,
    Attach,
    Beat,
    CodeTar,
    Ended,
    Here,
    Leaves,
    LetGo,
    Order,
    PreemptRun,
    RunSpec,
    Settled,
    SignalRun,
    Spoke,
    StartRun,
    Taken,
    Told,
    Wrote,
    decode_here,
    decode_told,
    encode_frame,
    encode_start,
)
from ._note import NOTE, end, find
from ._outbox import Outbox
from ._processes import HOOK, PASSES, hooked
from ._relay import Relay

__all__ = [
    "CHUNK",
    "HOOK",
    "NOTE",
    "PASSES",
    "AgentStart",
    "Answered",
    "Attach",
    "Beat",
    "CodeTar",
    "Ended",
    "Ferry",
    "Here",
    "Leaves",
    "LetGo",
    "Order",
    "Outbox",
    "PreemptRun",
    "Relay",
    "RunSpec",
    "Settled",
    "SignalRun",
    "Spoke",
    "StartRun",
    "Taken",
    "Told",
    "Wrote",
    "decode_here",
    "decode_told",
    "encode_frame",
    "encode_start",
    "end",
    "find",
    "hooked",
    "pack",
]
