"""The check, before a node's first trial, that it sees the driver's checkpoint storage."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import msgspec

from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.support.threads import start_thread
from det_node.agent import Ended
from det_node.agent.probe import leave, sees, versions
from det_node.launch import say

from .base import Engine, NodeJoined, NodeLost, Probe

PROBES = 1 << 62
"""The number of the first run that only checks its node. No other run has one so high."""


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


def was_terminated(status: int) -> bool:
    """Return whether a process with this exit status was ended from outside."""
    return status in (-SIGTERM, -SIGKILL, 128 + SIGTERM, 128 + SIGKILL)


def why_to_repeat(engine: Engine, node: str, ended: Ended) -> str:
    """Return why the end of a run says nothing of its node, or an empty text."""
    if ended.unstarted:
        return ended.unstarted
    if engine.is_leaving(node) or was_terminated(ended.status):
        return "its run was ended from outside"
    return ""


class Retries:
    """Repeats something on a node that cannot start a process now, at growing intervals.

    Each reason is reported once.
    """

    def __init__(self, what: str, begin: Callable[[str], None]) -> None:
        self._what, self._begin = what, begin
        self._pauses: dict[str, float] = {}
        self._reported: set[tuple[str, str]] = set()

    def again(self, node: str, why: str) -> None:
        if (node, why) not in self._reported:
            self._reported.add((node, why))
            say(f"{node} cannot {self._what} yet: {why}")
        pause = self._pauses[node] = min(
            2 * self._pauses.get(node, _FIRST_PAUSE_SECONDS / 2), _LONGEST_PAUSE_SECONDS
        )
        start_thread(
            self._later,
            node,
            pause,
            name="det-retry",
            failed=lambda error: self.again(node, f"{type(error).__name__}: {error}"),
        )

    def _later(self, node: str, pause: float) -> None:
        time.sleep(pause)
        self._begin(node)


class Probes:
    """Checks each node that joins before the driver knows of it.

    A run on the node must find an object in the storage and leave another one there. `fit` has the
    versions of the packages on each node that passed. `refused` says what is wrong with another
    node.
    """

    def __init__(self, engine: Engine, probe: Probe, directory: Path) -> None:
        self._engine, self._probe, self._directory = engine, probe, directory
        # By run: the node, and the name of the object that it must find.
        self._probing: dict[int, tuple[str, str]] = {}
        self._numbers = count(PROBES)
        self.fit: dict[str, dict[str, str]] = {}
        self._retries = Retries("be tried", self._begin)
        self.refused = ""

    def handle(self, event: Any) -> None:
        """Handle the messages of probes, and pass on all others."""
        match event:
            case NodeJoined(node, runs):
                ours = tuple(run for run in runs if run < PROBES)
                # A node with runs of trials was checked before they began.
                if ours:
                    self.fit.setdefault(node, {})
                elif node not in self.fit:
                    self._begin(node)
                event = NodeJoined(node, ours)
            case NodeLost(node):
                self.fit.pop(node, None)
            case Ended(run) if run >= PROBES:
                self._engine.acknowledge_end(run)
                if run not in self._probing:
                    return
                if why := why_to_repeat(self._engine, self._probing[run][0], event):
                    self._retries.again(self._probing.pop(run)[0], why)
                    return
                if event.unstartable:
                    node, _ = self._probing.pop(run)
                    self.refused = f"{node} cannot be tried: {event.unstartable}"
                else:
                    node = self._judge(run, event.status)
                # The driver then asks for the nodes again.
                event = NodeJoined(node)
        self._engine.on_event(event)

    def _begin(self, node: str) -> None:
        run, name = next(self._numbers), f"probe-{secrets.token_hex(8)}"
        self._probing[run] = node, name
        argv, logs = ("python3", "-P", "-m", "det_node.agent.probe", name), self._directory / name
        try:
            leave(self._probe.storage(), name)
            self._engine.start(
                msgspec.structs.replace(
                    self._probe.spec, run_id=run, node=node, entrypoint=argv, log_dir=logs
                )
            )
        except DetError as error:
            self.refused = f"the checkpoint storage cannot be used here: {error}"
        except OSError:
            # The node is gone. It is checked when it is back.
            del self._probing[run]

    def _judge(self, run: int, status: int) -> str:
        node, name = self._probing.pop(run)
        log, storage = self._directory / name / "rank-0.log", self._probe.storage()
        last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""
        found: dict[str, Any] = {
            "machine": node,
            "wrong": f"cannot be tried: {last} ({log} has all)",
        }
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
        other = [
            f"{k} {v} (here {here[k]})" for k, v in self.fit[node].items() if here.get(k, v) != v
        ]
        if other:
            say(f"{found['machine']} has {', '.join(other)}")
        return node
