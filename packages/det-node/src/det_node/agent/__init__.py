"""The agent starts the ranks of runs. Each node has one agent per experiment.

A driver starts the agent, or finds the one that an earlier driver left. Workers send their messages
to their agent, which keeps them until the driver has committed them. So a driver may be killed and
replaced while training continues. An agent without a driver for the time of its lease makes its
runs save and end.
"""

from __future__ import annotations

from ._files import pack
from ._frames import (
    AgentEnded,
    AgentError,
    AgentEvent,
    AgentHello,
    AgentStart,
    Attach,
    CodeTar,
    Ended,
    EndRuns,
    Heartbeat,
    LogChunk,
    LoggedFile,
    MessageAck,
    NodeLeaving,
    OpenTerminal,
    Order,
    PortsReserved,
    PreemptRun,
    ReservePorts,
    RunAck,
    RunConnected,
    RunSpec,
    SignalRun,
    StartRun,
    TerminalData,
    WorkerMessage,
    WorkerReply,
    decode_agent_events,
    decode_agent_hello,
    encode_frame,
    encode_start,
)
from ._note import NOTE, end, find
from ._outbox import Outbox
from ._processes import HOOK, PASSES, hooked
from ._relay import Relay
from ._tcp_relay import CHUNK, TcpRelay
from ._terminals import TerminalLink

__all__ = [
    "CHUNK",
    "HOOK",
    "NOTE",
    "PASSES",
    "AgentEnded",
    "AgentError",
    "AgentEvent",
    "AgentHello",
    "AgentStart",
    "Attach",
    "CodeTar",
    "EndRuns",
    "Ended",
    "Heartbeat",
    "LogChunk",
    "LoggedFile",
    "MessageAck",
    "NodeLeaving",
    "OpenTerminal",
    "Order",
    "Outbox",
    "PortsReserved",
    "PreemptRun",
    "Relay",
    "ReservePorts",
    "RunAck",
    "RunConnected",
    "RunSpec",
    "SignalRun",
    "StartRun",
    "TcpRelay",
    "TerminalData",
    "TerminalLink",
    "WorkerMessage",
    "WorkerReply",
    "decode_agent_events",
    "decode_agent_hello",
    "encode_frame",
    "encode_start",
    "end",
    "find",
    "hooked",
    "pack",
]
