"""Runs on this host by one agent, started for the experiment or left by an earlier driver."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from det_node.agent import NOTE, AgentHello, end, find

from .agents import AgentEngine
from .allocations import AgentCommand, Allocation, AllocationRequest, AllocationState, spawn
from .base import Node, OnEvent


class LocalEngine(AgentEngine):
    """Starts the agent as a process that outlives this one.

    The agent finds the next driver by a file of the experiment.
    """

    fenced, shared = False, True

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def requests(self, runs: int, slots: int) -> list[AllocationRequest]:
        return [] if self.asked else [AllocationRequest(name=self.new_name(), slots=slots)]

    def ask(self, request: AllocationRequest, command: AgentCommand) -> None:
        self._processes[request.name] = spawn(command.argv, command.start, self.log(request.name))

    def drop(self, name: str, *, at_once: bool = False) -> None:
        if name in self.look():
            end(self._note, at_once=at_once)
        elif name in self._processes:
            # Before it has written its note it has nothing to save.
            self._processes[name].terminate()

    def look(self) -> Mapping[str, Allocation]:
        note = find(self._note)
        return (
            {note["name"]: Allocation(name=note["name"], state=AllocationState.RUNNING)}
            if note
            else {}
        )

    def dead(self, name: str, node: int) -> bool:
        if name in self._processes and self._processes[name].poll() is None:
            # It may not have written its note yet.
            return False
        return name not in self.look()

    @property
    def _note(self) -> Path:
        return self.context.directory / NOTE

    def joined(self, here: AgentHello) -> None:
        # The agent keeps the leases of devices while it has runs, even if this process ends.
        self.holder = here.pid

    def node(self, here: AgentHello) -> Node:
        return Node(f"{here.name}/{here.node}")

    def workers_host(self, request: AllocationRequest) -> str:
        return self.context.host
