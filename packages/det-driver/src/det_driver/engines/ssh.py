"""Runs on hosts that a command such as ssh reaches.

An agent on each of `engine.hosts` connects to this driver.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from det_core.config import Ssh
from det_core.support.paths import read_regular
from det_node.agent import RunSpec
from det_node.launch import SSH, reaching
from det_node.machine import address_for

from .agents import MARGIN_SECONDS, AgentEngine
from .allocations import AgentCommand, Allocation, AllocationRequest, AllocationState, spawn
from .base import EngineContext, Node, OnEvent

_DIRECTORY = Path("~/.cache/det/agents")
_REACH_SECONDS = 20.0


class SshEngine(AgentEngine):
    """Starts an agent on each host when trials wait.

    The agent's start message travels on the standard input of the command. A file of the experiment
    lists the agents. To find out whether an agent still runs, its host is asked.
    """

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> Sequence[str]:
        """The names of the hosts."""
        return self._settings.hosts

    def reach(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that executes another one on a host."""
        return reaching(host, self._settings.agent or os.environ.get("DET_AGENT") or SSH, argv)

    def options(self) -> dict[str, Any]:
        """Return further arguments of `subprocess.Popen` for such commands."""
        return {}

    @property
    def _settings(self) -> Ssh:
        assert isinstance(self.context.settings, Ssh)
        return self.context.settings

    def open(self, context: EngineContext) -> tuple[RunSpec, ...]:
        runs = super().open(context)
        self.fence = self.context.lease + MARGIN_SECONDS
        # The lease of an agent that did not connect has ended, and with it its runs. Its
        # host gets another agent.
        for name in [name for name in self.asked if not self.is_connected(name)]:
            self.drop(name)
            del self.asked[name]
        return runs

    def nodes(self) -> list[Node]:
        # Two agents of one host would have the same devices.
        return [*{_host_of(node.name): node for node in super().nodes()}.values()]

    def lease_key(self, device: str) -> str:
        # Experiments have agents of their own on the host, and share its devices.
        node, _, name = device.rpartition("/")
        return f"{_host_of(node)}/{name}"

    def requests(self, runs: int, slots: int) -> list[AllocationRequest]:
        there = {_host(name) for name in self.asked}
        names = {host: f"{self.new_name()}@{host}" for host in self.hosts if host not in there}
        return [AllocationRequest(name=name, slots=slots) for name in names.values()]

    def ask(self, request: AllocationRequest, command: AgentCommand) -> None:
        names = {*self._noted(), request.name}
        self._requests.write_text(json.dumps(sorted(names)))
        reached = self.reach(_host(request.name), command.argv)
        self._processes[request.name] = spawn(
            reached, command.start, self.log(request.name), **self.options()
        )

    def drop(self, name: str, *, at_once: bool = False) -> None:
        self._agent_runs(name, "--kill" if at_once else "--end")

    def look(self) -> Mapping[str, Allocation]:
        # An agent knows where the driver was that started it, which may be another machine.
        here = [str(part) for part in self._links.address] if self._links is not None else []
        found = {name: self._agent_runs(name, "--find", *here) for name in self._noted()}
        # Without any, the experiment may never have had a driver, and no directory.
        if found:
            self._requests.write_text(
                json.dumps([name for name, there in found.items() if there is not False])
            )
        return {
            name: Allocation(
                name=name,
                state=AllocationState.ENDED if there is False else AllocationState.RUNNING,
            )
            for name, there in found.items()
        }

    def dead(self, name: str, node: int) -> bool:
        # An agent that did not end by itself may have left workers. They end before its lease does.
        # An agent that never connected has none.

        status = self._processes[name].poll() if name in self._processes else None
        return status == 0 or (status is not None and not self.is_connected(name))

    def directory(self, request: AllocationRequest) -> Path:
        return _DIRECTORY

    def address(self) -> str:
        return address_for(self._settings.hosts[0]) or self.context.host

    @property
    def _requests(self) -> Path:
        return self.context.directory / "claims.json"

    def _noted(self) -> set[str]:
        try:
            return set(json.loads(read_regular(self._requests)))
        except (OSError, ValueError, TypeError):
            return set()

    def _agent_runs(self, name: str, question: str, *words: str) -> bool | None:
        """Ask a host for its agent. Return None where the host does not answer."""
        argv = (*self.python()[:-1], question, str(_DIRECTORY / f"{name}-0.json"), *words)
        with suppress(subprocess.TimeoutExpired, OSError):
            asked = subprocess.run(
                self.reach(_host(name), argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_REACH_SECONDS,
                check=False,
                **self.options(),
            )
            if (printed := bytes(asked.stdout).strip()) in (b"there", b"gone"):
                return printed == b"there"
        return None


def _host(name: str) -> str:
    return name.partition("@")[2]


def _host_of(node: str) -> str:
    return _host(node.rpartition("/")[0])
