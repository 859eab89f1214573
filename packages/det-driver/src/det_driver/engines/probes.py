"""Whether a machine sees the checkpoint storage that its driver sees: tried before its first trial."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from det_core.agent import Ended
from det_core.agent.probe import leave, sees, versions
from det_core.errors import DetError
from det_core.launch import say
from det_core.plugins import Plugins

from .base import Engine, Joined, Lost, Probe

PROBES = 1 << 62
"""The number of the first run that only tries its machine; no other has one so high."""


class Probes:
    """Hears of machines before the driver does: a run on each is to find what is left in the storage, and to leave an answer.

    `fit` has the versions of what is installed on each machine that passed, `refused` says what is wrong with another.
    """

    def __init__(self, engine: Engine, probe: Probe, directory: Path) -> None:
        self._engine, self._probe, self._directory = engine, probe, directory
        self._tried: dict[int, tuple[str, str]] = {}  # the machine, and what it is to find
        self._numbers = count(PROBES)
        self.fit: dict[str, dict[str, str]] = {}
        self.refused = ""

    def hear(self, said: Any) -> None:
        """Take what is for this alone, and pass on what is for the driver."""
        match said:
            case Joined(node, runs):
                ours = tuple(run for run in runs if run < PROBES)
                if ours:  # it was tried before they began
                    self.fit.setdefault(node, {})
                elif node not in self.fit:
                    self._begin(node)
                said = Joined(node, ours)
            case Lost(node):
                self.fit.pop(node, None)
            case Ended(run) if run >= PROBES:
                self._engine.settled(run)
                if run not in self._tried:
                    return
                said = Joined(self._judge(run, said.status))  # the driver asks for a machine again
        self._engine.hears(said)

    def _begin(self, node: str) -> None:
        run, name = next(self._numbers), f"probe-{secrets.token_hex(8)}"
        self._tried[run] = node, name
        argv, logs = ("python3", "-P", "-m", "det_core.agent.probe", name), self._directory / name
        try:
            leave(self._probe.storage(), name)
            self._engine.start(
                msgspec.structs.replace(self._probe.spec, run_id=run, node=node, entrypoint=argv, log_dir=logs)
            )
        except DetError as error:
            self.refused = f"the checkpoint storage cannot be used here: {error}"
        except OSError:  # the machine is gone, and tried again when it is back
            del self._tried[run]

    def _judge(self, run: int, status: int) -> str:
        node, name = self._tried.pop(run)
        log, storage = self._directory / name / "rank-0.log", self._probe.storage()
        last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""
        found: dict[str, Any] = {"machine": node, "wrong": f"cannot be tried: {last} ({log} has all)"}
        with suppress(ValueError):
            found = json.loads(last) if status == 0 else found
        wrong = found["wrong"]
        if not wrong and not sees(storage, f"{name}-back"):
            wrong = f"writes to another storage than {storage.url(name)}"
        for each in (name, f"{name}-back"):
            with suppress(DetError):
                storage.delete(each)
        if wrong:
            self.refused = f"{found['machine']} {wrong}; name a checkpoint_storage that both reach"
            return node
        self.fit[node] = found["versions"]
        here = versions(Plugins.installed(warn=lambda message: None))
        other = [f"{k} {v} (here {here[k]})" for k, v in self.fit[node].items() if here.get(k, v) != v]
        if other:
            say(f"{found['machine']} has {', '.join(other)}")
        return node
