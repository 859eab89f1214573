"""The environment of an experiment, made on each node before its first run.

No device has to wait for it.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from det_node.agent import Ended

from .base import Engine, EngineContext, NodeJoined, NodeLost, OnEvent, Preparation
from .probes import Probes, Retries, why_to_repeat

PREPARATIONS = 1 << 61
"""The number of the first run that makes an environment.

Runs of trials have lower numbers, runs of probes have higher ones.
"""
_UNUSED_DAYS = 60


class Preparations:
    """Makes the environment on each node that joins, then passes the node on to `on_event`.

    A run on the node makes it, unless the node has it. `fit` are the nodes that have it. `refused`
    says why it cannot be made on another node.
    """

    def __init__(
        self,
        engine: Engine,
        preparation: Preparation,
        directory: Path,
        on_event: OnEvent,
        *,
        here: bool,
    ) -> None:
        self._engine, self._preparation, self._on_event, self._here = (
            engine,
            preparation,
            on_event,
            here,
        )
        self._directory = directory
        self._preparing: dict[int, str] = {}
        self._numbers = count(PREPARATIONS)
        self.fit: set[str] = set()
        self.refused = ""
        self._retries = Retries("make the environment", self._begin)

    @property
    def wait_reason(self) -> str:
        """That an environment is being made, and the path of its log, or ""."""
        runs = sorted(self._preparing)
        return f"for the environment, which is made; its log: {self._log(runs[0])}" if runs else ""

    def handle(self, event: Any) -> None:
        """Handle the messages of preparations, and pass on all others."""
        match event:
            case NodeJoined(node, runs):
                others = tuple(run for run in runs if not PREPARATIONS <= run < 2 * PREPARATIONS)
                # A node with runs of trials has the environment: it was made before they began.
                if others or (self._here and self._preparation.ready()):
                    self.fit.add(node)
                if node not in self.fit:
                    self._begin(node)
                    return
                event = NodeJoined(node, others)
            case NodeLost(node):
                self.fit.discard(node)
                self._preparing = {run: on for run, on in self._preparing.items() if on != node}
            case Ended(run) if PREPARATIONS <= run < 2 * PREPARATIONS:
                self._engine.acknowledge_end(run)
                node = self._preparing.pop(run, "")
                if not node:
                    return
                if why := why_to_repeat(self._engine, node, event):
                    self._retries.again(node, why)
                    return
                self._judge(run, node, event)
                event = NodeJoined(node)
        self._on_event(event)

    def _begin(self, node: str) -> None:
        # A node that has connected again is making it already.
        if node in self._preparing.values():
            return
        run = next(self._numbers)
        self._preparing[run] = node
        spec = self._preparation.spec
        # The run also deletes environments that are unused, as nothing else does so on other hosts.
        if not self._here:
            spec = msgspec.structs.replace(spec, entrypoint=f"{spec.entrypoint} {_UNUSED_DAYS}")
        try:
            self._engine.start(
                msgspec.structs.replace(spec, run_id=run, node=node, log_dir=self._log(run).parent)
            )
        except OSError:
            # The node is gone. It joins again when it is back.
            self._preparing.pop(run, None)

    def _log(self, run: int) -> Path:
        return self._directory / f"environment-{run - PREPARATIONS}-{os.getpid()}" / "rank-0.log"

    def _judge(self, run: int, node: str, ended: Ended) -> None:
        if not ended.status:
            self.fit.add(node)
            return
        log = self._log(run)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        output = [line.removeprefix("det: ").strip() for line in lines if line.strip()]
        why = ended.unstartable or (output[-1] if output else f"status {ended.status}")
        self.refused = f"the environment cannot be made: {why} ({log} has all)"


class Readiness:
    """What each node passes before its first run: making the environment, then the probe.

    Nodes that are this host (`here`) need no probe. Messages about nodes go to `handle` first.
    """

    def __init__(self, engine: Engine, context: EngineContext, *, here: bool) -> None:
        self.probes = (
            Probes(engine, context.probe, context.directory) if context.probe and not here else None
        )
        self.handle: OnEvent = self.probes.handle if self.probes else engine.on_event
        self._preparations: Preparations | None = None
        if context.preparation:
            self._preparations = Preparations(
                engine, context.preparation, context.directory, self.handle, here=here
            )
            self.handle = self._preparations.handle

    def fits(self, node: str) -> bool:
        """Return whether a node may have runs."""
        return all(node in each.fit for each in (self._preparations, self.probes) if each)

    @property
    def refused(self) -> str:
        """What is wrong with a node, or ""."""
        return next(
            (each.refused for each in (self._preparations, self.probes) if each and each.refused),
            "",
        )

    def explain_wait(self) -> str:
        """Return which preparation is running, or ""."""
        return self._preparations.wait_reason if self._preparations else ""
