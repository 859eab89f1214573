"""Runs on this machine: one agent has them, which is started for the experiment, or found where an earlier driver left it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from det_core.agent import NOTE, Here, end, find

from .agents import AgentEngine
from .base import Hears, Node
from .claims import AgentCommand, Claim, Granted, Standing, spawn


class LocalEngine(AgentEngine):
    """Starts the agent as a process that outlives this one; it finds the next driver by a file of the experiment's."""

    fenced, shared = False, True

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def claims(self, runs: int, slots: int) -> list[Claim]:
        return [] if self.asked else [Claim(name=self.new_name(), slots=slots)]

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        self._processes[claim.name] = spawn(command.argv, command.start, self.log(claim.name))

    def drop(self, name: str, *, at_once: bool = False) -> None:
        if name in self.look():
            end(self._note, at_once=at_once)
        elif name in self._processes:  # before its note it has nothing to save
            self._processes[name].terminate()

    def look(self) -> Mapping[str, Granted]:
        note = find(self._note)
        return {note["name"]: Granted(name=note["name"], standing=Standing.RUNNING)} if note else {}

    def dead(self, name: str, node: int) -> bool:
        if name in self._processes and self._processes[name].poll() is None:
            return False  # it may not have made its note yet
        return name not in self.look()

    @property
    def _note(self) -> Path:
        return self.site.directory / NOTE

    def joined(self, here: Here) -> None:
        self.holder = here.pid  # its devices are leased as long as it has runs, whatever becomes of this process

    def node(self, here: Here) -> Node:
        return Node(f"{here.name}/{here.node}")

    def workers_host(self, claim: Claim) -> str:
        return self.site.host
