"""Engines: where runs are executed."""

from __future__ import annotations

from det_node.agent import Ended, RunSpec, WorkerMessage

from ._links import make_own, write_own
from .accounts import AccountEngine
from .agents import AgentEngine
from .allocations import AgentCommand, Allocation, AllocationRequest, AllocationState
from .base import (
    Engine,
    EngineContext,
    EngineFailed,
    Node,
    NodeJoined,
    NodeLost,
    OnEvent,
    Preparation,
    Probe,
    machine_of,
)
from .probes import was_terminated
from .queued import QueueEngine
from .tcp_relays import Call

__all__ = [
    "AccountEngine",
    "AgentCommand",
    "AgentEngine",
    "Allocation",
    "AllocationRequest",
    "AllocationState",
    "Call",
    "Ended",
    "Engine",
    "EngineContext",
    "EngineFailed",
    "Node",
    "NodeJoined",
    "NodeLost",
    "OnEvent",
    "Preparation",
    "Probe",
    "QueueEngine",
    "RunSpec",
    "WorkerMessage",
    "machine_of",
    "make_own",
    "was_terminated",
    "write_own",
]
