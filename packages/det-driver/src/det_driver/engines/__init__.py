"""Engines: where runs are executed."""

from __future__ import annotations

from det_core.agent import Ended, RunSpec, Spoke

from .agents import AgentEngine
from .base import Engine, Hears, Joined, Lost, Node, Preparation, Probe, Site, machine_of
from .claims import AgentCommand, Claim, Granted, Standing
from .ferries import Call, carry
from .queued import QueueEngine

__all__ = [
    "AgentCommand",
    "AgentEngine",
    "Call",
    "Claim",
    "Ended",
    "Engine",
    "Granted",
    "Hears",
    "Joined",
    "Lost",
    "Node",
    "Preparation",
    "Probe",
    "QueueEngine",
    "RunSpec",
    "Site",
    "Spoke",
    "Standing",
    "carry",
    "machine_of",
]
