"""Runs on machines that a command such as ssh reaches: an agent on each of `engine.hosts`, which connects to this driver."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from det_core.config import Ssh
from det_core.launch import SSH, reaching
from det_core.machine import address_for

from .agents import AgentEngine
from .base import Hears
from .claims import AgentCommand, Claim, Granted, Standing, spawn

_DIRECTORY = Path("~/.cache/det/agents")
_REACH_SECONDS = 20.0


class SshEngine(AgentEngine):
    """Starts an agent on each host when trials wait; what it is told travels on the standard input of the command.

    Which agents there are is noted beside the experiment; whether one is still there, its host is asked.
    """

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _template(self) -> str:
        return self._settings.agent or os.environ.get("DET_AGENT") or SSH

    @property
    def _settings(self) -> Ssh:
        assert isinstance(self.site.settings, Ssh)
        return self.site.settings

    def claims(self, runs: int, slots: int) -> list[Claim]:
        there = {_host(name) for name in self.asked}
        names = {host: f"{self.new_name()}@{host}" for host in self._settings.hosts if host not in there}
        return [Claim(name=name, slots=slots) for name in names.values()]

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        names = {*self._noted(), claim.name}
        self._claims.write_text(json.dumps(sorted(names)))
        reached = reaching(_host(claim.name), self._template, command.argv)
        self._processes[claim.name] = spawn(reached, command.start, self.log(claim.name))

    def drop(self, name: str, *, at_once: bool = False) -> None:
        self._there(name, "--kill" if at_once else "--end")

    def look(self) -> Mapping[str, Granted]:
        found = {name: self._there(name, "--find") for name in self._noted()}
        self._claims.write_text(json.dumps([name for name, there in found.items() if there is not False]))
        return {
            name: Granted(name=name, standing=Standing.ENDED if there is False else Standing.RUNNING)
            for name, there in found.items()
        }

    def dead(self, name: str, node: int) -> bool:
        # One that did not end by itself may have left workers, which end before a lease has; one that never came has none.
        status = self._processes[name].poll() if name in self._processes else None
        return status == 0 or (status is not None and not self.came(name))

    def directory(self, claim: Claim) -> Path:
        return _DIRECTORY

    def address(self) -> str:
        return address_for(self._settings.hosts[0]) or self.site.host

    @property
    def _claims(self) -> Path:
        return self.site.directory / "claims.json"

    def _noted(self) -> set[str]:
        try:
            return set(json.loads(self._claims.read_text()))
        except (OSError, ValueError):
            return set()

    def _there(self, name: str, question: str) -> bool | None:
        """Ask a host for its agent; None where it does not answer."""
        argv = (*self.python()[:-1], question, str(_DIRECTORY / f"{name}-0.json"))
        with suppress(subprocess.TimeoutExpired, OSError):
            asked = subprocess.run(
                reaching(_host(name), self._template, argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_REACH_SECONDS,
                check=False,
            )
            if asked.stdout.strip() in (b"there", b"gone"):
                return asked.stdout.strip() == b"there"
        return None


def _host(name: str) -> str:
    return name.partition("@")[2]
